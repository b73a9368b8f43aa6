"""Rows of billing exports: the columns of each format, what lines are for, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

import pytest

from phalanx.core.cost.bill_formats import (
    BillColumns,
    BillFault,
    BillMapping,
    BillRule,
    bill_reader,
)
from phalanx.core.cost.bills import BilledKind, BillLine
from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.prices import NANO

pytestmark = pytest.mark.unit
NOV = 20758 * DAY_US  # 2026-11-01
HOUR = 3600 * 1_000_000


def read(row: Mapping[str, str], mapping: BillMapping | None = None) -> BillLine | None:
    return bill_reader(list(row), mapping).read(list(row.values()))


def line_of(row: Mapping[str, str], mapping: BillMapping | None = None) -> BillLine:
    found = read(row, mapping)
    assert found is not None
    return found


AWS = {
    "identity/LineItemId": "abc",
    "identity/TimeInterval": "2026-11-01T00:00:00Z/2026-11-01T01:00:00Z",
    "lineItem/UsageStartDate": "2026-11-01T00:00:00Z",
    "lineItem/UsageEndDate": "2026-11-01T01:00:00Z",
    "lineItem/ProductCode": "AmazonEC2",
    "lineItem/UsageType": "USW2-BoxUsage:p5.48xlarge",
    "lineItem/UnblendedCost": "98.3200000000",
    "lineItem/CurrencyCode": "USD",
    "lineItem/ResourceId": "i-0123",
    "resourceTags/user:phalanx-pool": "gpu",
    "resourceTags/user:phalanx-slot-type": "h100",
}
AWS_2 = {
    "identity_line_item_id": "abc",
    "line_item_usage_start_date": "2026-11-01 00:00:00.000",
    "line_item_usage_end_date": "2026-12-01 00:00:00.000",
    "line_item_product_code": "AmazonS3",
    "line_item_usage_type": "TimedStorage-ByteHrs",
    "line_item_unblended_cost": "2.3",
    "line_item_currency_code": "USD",
    "line_item_resource_id": "ckpt",
    "resource_tags": "{}",
}
FOCUS = {
    "BilledCost": "12.5",
    "EffectiveCost": "11",
    "BillingCurrency": "USD",
    "ChargePeriodStart": "2026-11-01T00:00:00Z",
    "ChargePeriodEnd": "2026-11-02T00:00:00Z",
    "ServiceCategory": "Compute",
    "ServiceName": "Virtual Machines",
    "ResourceId": "vm-1",
    "Tags": json.dumps({"phalanx-pool": "gpu"}),
}
GOOGLE = {
    "service.description": "Compute Engine",
    "sku.description": "A3 GPU running in Americas",
    "usage_start_time": "2026-11-01 00:00:00 UTC",
    "usage_end_time": "2026-11-01 01:00:00 UTC",
    "cost": "1E-7",
    "currency": "USD",
    "labels": json.dumps([{"key": "phalanx-pool", "value": "gpu"}]),
}
AZURE = {
    "Date": "11/01/2026",
    "CostInBillingCurrency": "3.06",
    "BillingCurrencyCode": "USD",
    "MeterCategory": "Virtual Machines",
    "MeterName": "ND96",
    "ResourceId": "/subscriptions/1/vm",
    "Tags": '"phalanx-pool": "gpu","phalanx-slot-type": "a100"',
}
OWN = {"day": "2026-11-01", "usd": "7", "kind": "slot", "pool": "gpu", "slot_type": "h100"}


def shown(line: BillLine) -> tuple[object, ...]:
    return (line.kind.value, line.place, line.slot_type, line.nano_usd)


def test_each_format_is_known_by_its_columns() -> None:
    assert shown(line_of(AWS)) == ("slot", "gpu", "h100", 98_320_000_000)
    assert shown(line_of(AWS_2)) == ("storage", "s3://ckpt", "", 2_300_000_000)
    assert shown(line_of(FOCUS)) == ("slot", "gpu", "", 12_500_000_000)
    assert shown(line_of(GOOGLE)) == ("slot", "gpu", "", 100)
    assert shown(line_of(AZURE)) == ("slot", "gpu", "a100", 3_060_000_000)
    assert shown(line_of(OWN)) == ("slot", "gpu", "h100", 7 * NANO)


def test_times_are_read_as_each_format_writes_them() -> None:
    hour = (NOV, NOV + HOUR)
    for row, period in (
        (AWS, hour),
        (AWS_2, (NOV, NOV + 30 * DAY_US)),
        (FOCUS, (NOV, NOV + DAY_US)),
        (GOOGLE, hour),
        (AZURE, (NOV, NOV + DAY_US)),
        (OWN, (NOV, NOV + DAY_US)),
        (OWN | {"day": "2026-11-01T06:00:00+06:00"}, (NOV, NOV)),
    ):
        line = line_of(row)
        assert (line.from_at, line.to_at) == period, row


@pytest.mark.parametrize(
    ("row", "changes", "kind", "place"),
    [
        (AWS_2, {"line_item_usage_type": "DataTransfer-Out-Bytes"}, "transfer", "s3://ckpt"),
        (AWS_2, {"line_item_product_code": "AWSSupport", "line_item_usage_type": ""}, "other", ""),
        (FOCUS, {"ServiceCategory": "Networking", "Tags": ""}, "transfer", ""),
        (FOCUS, {"Tags": ""}, "slot", ""),
        (
            FOCUS,
            {"Tags": '{"phalanx-store": "az://a"}', "ServiceCategory": "Storage"},
            "storage",
            "az://a",
        ),
        (GOOGLE, {"service.description": "Cloud Storage", "labels": "[]"}, "storage", ""),
        (OWN, {"kind": "other"}, "other", ""),
        (OWN, {"kind": "STORAGE", "store": "s3://b"}, "storage", "s3://b"),
    ],
)
def test_what_a_line_is_for(row, changes, kind: str, place: str) -> None:
    found = line_of(row | changes)
    assert (found.kind.value, found.place) == (kind, place)


def test_a_line_has_the_id_of_the_provider_or_a_digest_of_its_cells() -> None:
    assert line_of(AWS).id == "abc 2026-11-01T00:00:00Z/2026-11-01T01:00:00Z"
    assert line_of(AWS_2).id == "abc"
    assert line_of(OWN | {"id": "x"}).id == "x"
    first = line_of(FOCUS)
    assert first.id.startswith("sha256:") and first.id == line_of(FOCUS).id
    names = list(FOCUS)
    random.Random(1).shuffle(names)
    assert line_of({name: FOCUS[name] for name in names}) == first
    assert line_of(FOCUS | {"ResourceId": "vm-2"}).id != first.id
    long = line_of(OWN | {"id": "x" * 500}).id
    assert long.startswith("sha256:") and long != line_of(OWN | {"id": "x" * 501}).id


def test_rules_of_a_mapping_go_first() -> None:
    box = BillRule((("lineitemusagetype", "*BoxUsage:p5*"),), BilledKind.SLOT, "big", "h100")
    ignored = BillRule((("lineitemproductcode", "amazons3"),), None)
    mapping = BillMapping(rules=(box, ignored))
    assert shown(line_of(AWS, mapping))[:3] == ("slot", "big", "h100")
    assert read(AWS_2, mapping) is None
    columns = BillColumns("the mapping", cost=("charge",), begin=("start",))
    other = BillMapping(columns, (BillRule((("what", "gpu*"),), BilledKind.SLOT, "gpu"),))
    row = {"Charge": "5", "Start": "2026-11-01", "What": "GPU hours"}
    assert shown(line_of(row, other)) == ("slot", "gpu", "", 5 * NANO)
    with pytest.raises(BillFault, match="no column 'charge', which the mapping names"):
        read(AWS, other)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"a": "1", "b": "2"}, "of no known format"),
        (OWN | {"usd": "one"}, "usd: 'one' is no number"),
        (OWN | {"usd": "NaN"}, "more than 1000000000 US dollars"),
        (OWN | {"usd": "1e999999"}, "more than 1000000000 US dollars"),
        (OWN | {"usd": "-1e9999999"}, "more than 1000000000 US dollars"),
        (OWN | {"day": "soon"}, "from: 'soon' is no time"),
        (OWN | {"day": "0001-01-01T00:00:00+23:59"}, "is no time|not between"),
        (OWN | {"day": "2200-01-01T00:00:00"}, "is not between 1970 and 2100"),
        (OWN | {"to": "2026-10-01"}, "ends before it begins"),
        (OWN | {"to": "2029-10-01"}, "more than 400 days"),
        (OWN | {"currency": "EUR"}, "the currency is 'EUR'; the ledger is in USD"),
        (OWN | {"kind": "car"}, "kind: 'car' is not one of slot, storage, transfer, other"),
        (OWN | {"pool": "x" * 300}, "is longer than 256 characters"),
        (OWN | {"pool": "a\u202eb"}, "not printable"),
    ],
)
def test_what_cannot_be_read_is_named(row: Mapping[str, str], said: str) -> None:
    with pytest.raises(BillFault, match=said):
        read(row)


def test_rows_and_columns_must_agree() -> None:
    with pytest.raises(BillFault, match="2 cells where the first line has 3 columns"):
        bill_reader(["day", "usd", "kind"]).read(["2026-11-01", "1"])
    with pytest.raises(BillFault, match="the column 'usd' is there twice"):
        bill_reader(["day", "usd", "USD"])
    with pytest.raises(BillFault, match="2000 are the limit"):
        bill_reader(["usd"] * 2001)
