//! Who is in the union, and how near each is to this member.

use crate::wire::{BranchId, Member, Members};
use perigee_cluster::Coordinate;
use perigee_cluster::nearness::{Nearness, Place, Spot, between};
use perigee_types::NodeId;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// The members, as the starter last told.
#[derive(Debug, Clone)]
pub struct Roster {
    me: NodeId,
    version: u64,
    members: BTreeMap<NodeId, Member>,
    /// All branches, the nearest first.
    order: Vec<BranchId>,
    holders: BTreeMap<BranchId, NodeId>,
}

impl Roster {
    /// Takes what the starter told.
    #[must_use]
    pub fn new(me: NodeId, told: Members) -> Self {
        let members = told.members;
        let holders = members.iter().flat_map(|member| {
            let branches = member.branches.iter();
            branches.map(|branch| (*branch, member.id))
        });
        let mut roster = Self {
            me,
            version: told.version,
            holders: holders.collect(),
            members: members.into_iter().map(|m| (m.id, m)).collect(),
            order: Vec::new(),
        };
        let mut order: Vec<BranchId> = roster.holders.keys().copied().collect();
        order.sort_by_key(|branch| {
            let holder = roster.holders.get(branch).copied().unwrap_or(me);
            // What is here comes first, whatever else is on this machine.
            let here = if holder == me { 0 } else { 1 };
            (here, roster.near(me, holder).rank(), *branch)
        });
        roster.order = order;
        roster
    }

    /// Which of all that the starter has told it is.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A member.
    #[must_use]
    pub fn member(&self, id: NodeId) -> Option<&Member> {
        self.members.get(&id)
    }

    /// All members.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// The other members that have branches.
    pub fn others(&self) -> impl Iterator<Item = NodeId> {
        let others = self
            .members
            .values()
            .filter(|m| m.id != self.me && !m.branches.is_empty());
        others.map(|member| member.id)
    }

    /// Those of them at this host's site.
    #[must_use]
    pub fn is_neighbour(&self, id: NodeId) -> bool {
        self.near(self.me, id).place <= Place::Site
    }

    /// All branches, the nearest first.
    #[must_use]
    pub fn order(&self) -> &[BranchId] {
        &self.order
    }

    /// Who has a branch.
    #[must_use]
    pub fn holder(&self, branch: BranchId) -> Option<NodeId> {
        self.holders.get(&branch).copied()
    }

    /// Whether the host of a branch cannot be reached now.
    #[must_use]
    pub fn is_away(&self, branch: BranchId) -> bool {
        let holder = self.holder(branch).and_then(|id| self.members.get(&id));
        holder.is_none_or(|member| member.away)
    }

    /// How near the second member is to the first.
    #[must_use]
    pub fn near(&self, from: NodeId, to: NodeId) -> Nearness {
        between(self.spot(from), self.spot(to))
    }

    fn spot(&self, id: NodeId) -> Spot<'_> {
        let member = self.members.get(&id);
        let nowhere = IpAddr::V4(Ipv4Addr::from(id.0));
        let address = member.and_then(|member| member.addresses.first());
        Spot {
            machine: address.map_or(nowhere, |address| address.ip()),
            site: None,
            coordinate: member.and_then(|m| Coordinate::from_note(&m.coordinate)),
            disk: None,
        }
    }
}
