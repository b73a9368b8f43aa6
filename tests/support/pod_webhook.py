"""A webhook of a real API server that changes new pods, as the one of Kueue does."""

import base64
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from support.certificates import certify

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
NAME = "pods.tests.invalid"


class PodWebhook:
    """Listens on loopback; `change` gets each new pod and changes it in place."""

    def __init__(self, folder, change):
        self._certificate = certify(folder / "webhook.pem")

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
                pod = asked["object"]
                change(pod)
                patch = [
                    {"op": "replace", "path": f"/{key}", "value": pod[key]}
                    for key in ("metadata", "spec")
                ]
                body = {
                    "apiVersion": "admission.k8s.io/v1",
                    "kind": "AdmissionReview",
                    "response": {
                        "uid": asked["uid"],
                        "allowed": True,
                        "patchType": "JSONPatch",
                        "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
                    },
                }
                text = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format, *args):
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "webhook.pem")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads, self._server.block_on_close = True, False
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def configuration(self, namespaces):
        """The object that registers it for new pods of these namespaces."""
        selected = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces}
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
        client = {
            "url": f"https://127.0.0.1:{self._server.server_address[1]}/",
            "caBundle": base64.b64encode(self._certificate).decode(),
        }
        webhook = {
            "name": NAME,
            "clientConfig": client,
            "rules": [{**rule, "resources": ["pods"]}],
            "namespaceSelector": {"matchExpressions": [selected]},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": NAME},
            "webhooks": [webhook],
        }

    def close(self):
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
