"""The connection of a supervisor to the control plane.

`link` queues numbered reports, sends them and receives orders; `bulk_shipper` ships logs, metrics and data
ledgers one batch at a time; `orphan_reports` sends what supervisors of earlier attempts could not.
"""
