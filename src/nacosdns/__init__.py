"""nacosdns: a bridge from Nacos to DNS. This is the public list; docs/plugins.md shows how a plugin uses it.

Must not know: the conductors and edges. Rule: importing it costs little, for every process does.
"""

from nacosdns.core.balance import Balancer, Member
from nacosdns.core.model import Instance, Policy, ServiceKey, Snapshot

__all__ = ["Balancer", "Instance", "Member", "Policy", "ServiceKey", "Snapshot"]
