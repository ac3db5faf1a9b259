"""A DNS reply as people read it.

Must not know: where the reply came from. Rule: only the command line uses it, for dnslib, which knows every type,
costs a process that answers 30 ms of start and 2 MB.
"""

from __future__ import annotations

import dnslib

from nacosdns.core import dnsname
from nacosdns.core.model import RecordType, rcode_text, type_text


def reply(packet: bytes) -> dict[str, object]:
    """Rcode, flags and the records of each section, in words."""
    parsed = dnslib.DNSRecord.parse(packet)
    return {
        "rcode": rcode_text(parsed.header.rcode),
        "authoritative": bool(parsed.header.aa),
        "answers": [_spelled_record(record) for record in parsed.rr],
        "authority": [_spelled_record(record) for record in parsed.auth],
        "additional": [_spelled_record(record) for record in parsed.ar if record.rtype != RecordType.OPT],
    }


def _spelled_record(record: dnslib.RR) -> dict[str, object]:
    owner = dnsname.name_to_wire(tuple(record.rname.label))
    return {
        "name": dnsname.name_text(owner),
        "type": type_text(record.rtype),
        "ttl_s": record.ttl,
        "data": str(record.rdata),
    }
