/** What a run was made of: spec, source, software, data and seeds. */

import type { JSX } from "preact";
import { get, type Job } from "../api/client";
import { useLoad } from "../ui/hooks";
import { Show } from "../ui/parts";

export function Record({ job }: { job: Job }): JSX.Element {
  const found = useLoad((abort) => get("/api/v1/jobs/{num}/provenance", { num: job.num }, undefined, abort), [job.num]);
  return (
    <>
      <Show of={found}>
        {(one) => (
          <>
            <Part title="Parameters" of={one.params} open />
            <Part title="Source" of={one.source} open />
            <Part title="Commands" of={one.commands} open />
            <Part title="Seeds" of={{ seed: one.seed, seeds: one.seeds }} />
            <Part title="Data and inputs" of={{ data: one.data, inputs: one.inputs }} />
            <Part title="Software" of={one.software} />
            <Part title="Environment" of={one.env} />
            <Part title="Places" of={one.places} />
            <Part title="Resumes and origin" of={{ begins_from: one.begins_from, resumes: one.resumes, cloned_from: one.cloned_from }} />
          </>
        )}
      </Show>
      <Part title="Spec" of={job.spec} />
    </>
  );
}

function Part({ title, of, open }: { title: string; of: unknown; open?: boolean }): JSX.Element | null {
  if (of === null || of === undefined || Object.keys(of as object).length === 0) return null;
  return (
    <details class="group" open={open ?? false}>
      <summary>{title}</summary>
      <pre tabIndex={0}>{JSON.stringify(of, null, 2)}</pre>
    </details>
  );
}
