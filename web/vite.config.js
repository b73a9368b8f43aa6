import { defineConfig } from "vite";

// Addresses are relative, because a proxy may serve the UI below a prefix; nothing is inlined, because the
// Content-Security-Policy forbids it.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/phalanx/server/web/dist",
    emptyOutDir: true,
    assetsDir: "",
    assetsInlineLimit: 0,
    target: "es2022",
    modulePreload: { polyfill: false },
  },
});
