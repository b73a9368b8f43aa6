"""What verbs need on the user's machine.

`invocation` reads the user's environment, once; `session` connects to a control plane, which `embedded`
finds or starts; `run_spec` turns flags into a job spec and `snapshot` archives the code; `follow` shows a
job until it ends; `measuring` runs measurement jobs; `checkup` and `network` belong to `doctor`. May use
`terminal`, never `verbs`.
"""
