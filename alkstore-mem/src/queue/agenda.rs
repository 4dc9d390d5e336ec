//! Instants at which something happens to a job, in order.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Bound;

use alkstore_core::{JobId, Timestamp};

pub(super) type At = (Timestamp, JobId);

/// Jobs by an instant.
///
/// The latest stands first in the tree, since most comes in at the end and much of it leaves
/// soon: a node is searched from its start.
#[derive(Debug, Default)]
pub(super) struct Agenda(BTreeSet<Reverse<At>>);

impl Agenda {
    pub(super) fn insert(&mut self, at: At) {
        self.0.insert(Reverse(at));
    }

    pub(super) fn remove(&mut self, at: At) {
        self.0.remove(&Reverse(at));
    }

    pub(super) fn first(&self) -> Option<At> {
        self.0.last().map(|&Reverse(at)| at)
    }

    /// The first behind another, or of all.
    pub(super) fn next(&self, behind: Option<At>) -> Option<At> {
        let end = behind.map_or(Bound::Unbounded, |at| Bound::Excluded(Reverse(at)));
        self.0.range((Bound::Unbounded, end)).next_back().map(|&Reverse(at)| at)
    }

    /// What has fallen due.
    pub(super) fn due(&self, now: Timestamp) -> Vec<At> {
        self.0.iter().rev().map(|&Reverse(at)| at).take_while(|&(at, _)| at <= now).collect()
    }
}
