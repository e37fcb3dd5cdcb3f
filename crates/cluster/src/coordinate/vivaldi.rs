//! How a node finds out where it is: each round trip is a spring between it and a peer, and it yields.

use super::filter::Filter;
use super::{Coordinate, ERROR_MAX, ERROR_MIN, HEIGHT_MIN, Vector};
use perigee_types::{NodeId, Rng, Span, Tick};
use std::collections::BTreeMap;

/// A node that knows nothing of its place finds it by the round trips of so many peers that do (PERFUSE, section III.B).
pub const PROBES: usize = 3;
/// How much of what is wrong a node that knows less than its peer makes up for at once (Vivaldi, `c_c`).
const STEP: f64 = 0.25;
/// How much the last round trip says of how wrong a node is (`c_e` there).
const ERROR_STEP: f64 = 0.25;
/// So many microseconds of a difference say nothing: a processor was late. Else short round trips, of which that is the
/// greater part, would make a node that is where it should be doubt it.
const NOISE: f64 = 400.0;
/// A node whose error is above this has not found its place yet.
const NEW: f64 = 1.0;
/// The least error of one that has just found it.
const PLACED_ERROR: f64 = 0.3;
/// Nobody pulls so many times as hard as the middle one of all peers: one that lies, or is wrong, moves nobody far.
const PULL_MAX: f64 = 3.0;
/// All are drawn towards the middle, or they would wander off together: by a microsecond at a distance of so many, and as the
/// square of the distance ("Network coordinates in the wild").
const GRAVITY: f64 = 30e3;
/// How much of its height a node loses with each round trip, unless that shows it to be right: what could as well be a way
/// over the plane is one. Of two nodes of a site one may else stay high above the middle of the map, and the other outside.
const HEIGHT_LOST: f64 = 0.008;
/// No more than one round trip of a peer counts in so long: who answers what was not asked moves nobody more often than others.
const APART: Span = Span::from_millis(200);
/// A round trip of more says nothing about distance.
const SAMPLE_MAX: Span = Span::from_millis(5_000);
/// A peer of which nothing was heard for so long is forgotten.
const FORGOTTEN: Span = Span::from_millis(60_000);
/// No more peers than these are kept in mind.
const PEERS_MAX: usize = 1_024;
/// A node that has moved by less than this is where it was.
const MOVED_MIN: Span = Span::from_millis(1);
/// How often a node that looks for its place goes over the peers until it rests.
const PLACING: usize = 200;
/// It looks at no more of them than these, the nearest.
const PLACING_PEERS: usize = 32;
/// After so many round trips a node looks whether there is a place that fits clearly better: springs may have come to rest
/// with it on the wrong side of the others.
const LOOKS_AGAIN: u32 = 64;
/// Better than this part of how far predictions are off now.
const CLEARLY_BETTER: f64 = 0.7;

/// A node's own coordinate, and what it knows of those whose round trips it has measured.
#[derive(Debug, Clone)]
pub struct Vivaldi {
    at: Vector,
    error: f64,
    peers: BTreeMap<NodeId, Peer>,
    /// Round trips since it looked for a better place.
    since_looked: u32,
}

#[derive(Debug, Clone)]
struct Peer {
    filter: Filter,
    told: Coordinate,
    heard: Tick,
    /// By how many microseconds the last prediction was wrong.
    off: f64,
}

impl Default for Vivaldi {
    fn default() -> Self {
        Self {
            at: Vector::default().bounded(),
            error: ERROR_MAX,
            peers: BTreeMap::new(),
            since_looked: 0,
        }
    }
}

impl Vivaldi {
    /// Where the node is, as far as it knows.
    #[must_use]
    pub fn coordinate(&self) -> Coordinate {
        Coordinate::of(self.at, self.error)
    }

    /// The round trips to peers that were heard of lately, without what stood in their way.
    pub fn round_trips(&self) -> impl Iterator<Item = (NodeId, Span)> {
        let measured = |(node, peer): (&NodeId, &Peer)| Some((*node, peer.filter.value()?));
        let all = self.peers.iter().filter_map(measured);
        all.map(|(node, micros)| (node, Span(micros as u64)))
    }

    /// The round trip in the middle of all; zero where there is none.
    #[must_use]
    pub fn middle_round_trip(&self) -> Span {
        let all = self.round_trips().map(|(_, span)| span.as_micros() as f64);
        Span(middle(all).unwrap_or(0.0) as u64)
    }

    /// Whether others who choose by where nodes are would do so better if they knew of this node what it knows now: they are
    /// told of moves by more than a sixth of what round trips take, so that what they choose rests while the network does.
    #[must_use]
    pub fn is_worth_telling(&self, told: Option<Coordinate>) -> bool {
        let now = self.coordinate();
        let least = Span(self.middle_round_trip().as_micros() / 6).max(MOVED_MIN);
        now.is_known() && told.is_none_or(|told| now.moved(told) > least)
    }

    /// Takes a round trip to a peer that told where it is.
    pub fn on_round_trip(
        &mut self,
        now: Tick,
        (node, told): (NodeId, Coordinate),
        took: Span,
        rng: &mut Rng,
    ) {
        let heard = self.peers.get(&node).map(|peer| peer.heard);
        if took > SAMPLE_MAX || heard.is_some_and(|heard| now.since(heard) < APART) {
            return;
        }
        self.make_room(now, node);
        let peer = self.peers.entry(node).or_insert_with(|| Peer {
            filter: Filter::default(),
            told,
            heard: now,
            off: 0.0,
        });
        (peer.told, peer.heard) = (told, now);
        let took = peer.filter.push((took.as_micros() as f64).max(HEIGHT_MIN));
        self.since_looked += 1;
        let looks = self.error > NEW || self.since_looked >= LOOKS_AGAIN;
        if !(looks && self.look_for_place(rng)) {
            self.yield_to((node, told), took, rng);
        }
    }

    /// Forgets who was not heard of for long, and whoever else stands in the way of a new one.
    fn make_room(&mut self, now: Tick, node: NodeId) {
        if self.peers.contains_key(&node) {
            return;
        }
        self.peers
            .retain(|_, peer| now.since(peer.heard) < FORGOTTEN);
        if self.peers.len() >= PEERS_MAX {
            let oldest = self.peers.iter().min_by_key(|(_, peer)| peer.heard);
            if let Some(oldest) = oldest.map(|(node, _)| *node) {
                self.peers.remove(&oldest);
            }
        }
    }

    /// A peer was `took` away.
    fn yield_to(&mut self, (node, told): (NodeId, Coordinate), took: f64, rng: &mut Rng) {
        let weight = self.error / (self.error + told.relative_error());
        let there = told.vector();
        let off = took - self.at.distance(there);
        let wrong = relative_error(took, self.at.distance(there));
        let heed = ERROR_STEP * weight;
        self.error = (wrong * heed + self.error * (1.0 - heed)).clamp(ERROR_MIN, ERROR_MAX);
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.off = off.abs();
        }
        let most = self.pull_max();
        self.at = moved(self.at, there, STEP * weight * off.clamp(-most, most), rng);
        self.at.height *= 1.0 - HEIGHT_LOST;
        let out = self.at.x.hypot(self.at.y);
        let drawn = 1.0 - out / (GRAVITY * GRAVITY);
        self.at.x *= drawn.max(0.0);
        self.at.y *= drawn.max(0.0);
        self.at = self.at.bounded();
    }

    /// The most that a spring counts for. Among fewer than three nobody can say who is wrong.
    fn pull_max(&self) -> f64 {
        match middle(self.peers.values().map(|peer| peer.off)) {
            Some(off) if self.peers.len() >= PROBES => PULL_MAX * off.max(NOISE),
            Some(_) | None => f64::INFINITY,
        }
    }

    /// Looks for a place that fits better, from the nearest peer on; says whether the node is there now. A newcomer takes any,
    /// once enough peers know theirs.
    fn look_for_place(&mut self, rng: &mut Rng) -> bool {
        self.since_looked = 0;
        let known = self.peers.values().filter(|peer| peer.told.is_known());
        let probe = |peer: &Peer| {
            Some(Probe {
                took: peer.filter.value()?,
                at: peer.told.vector(),
            })
        };
        let mut probes: Vec<Probe> = known.filter_map(probe).collect();
        probes.sort_by(|a, b| a.took.total_cmp(&b.took));
        probes.truncate(PLACING_PEERS);
        let (Some(nearest), true) = (probes.first(), probes.len() >= PROBES) else {
            return false;
        };
        let height = HEIGHT_MIN;
        let mut at = Vector {
            height,
            ..nearest.at
        };
        for round in 0..PLACING {
            let step = STEP * (1.0 - round as f64 / PLACING as f64);
            for probe in &probes {
                at = moved(
                    at,
                    probe.at,
                    step * (probe.took - at.distance(probe.at)),
                    rng,
                );
            }
        }
        let is_new = self.error > NEW;
        let better = is_new || {
            let (now, then) = (off_at(self.at, &probes), off_at(at, &probes));
            now > NOISE && then < CLEARLY_BETTER * now
        };
        if better {
            self.at = at;
            let wrong = |probe: &Probe| relative_error(probe.took, at.distance(probe.at));
            let wrong = probes.iter().map(wrong).sum::<f64>() / probes.len() as f64;
            // Three circles may meet where the node is not.
            self.error = wrong.clamp(PLACED_ERROR, NEW);
        }
        better
    }
}

/// A peer that knows where it is, and how far that is from here.
struct Probe {
    took: f64,
    at: Vector,
}

/// By how much the predictions of a place are off, in the mean. None counts for more than a round trip does: one of all may
/// be a liar's.
fn off_at(at: Vector, probes: &[Probe]) -> f64 {
    let most = middle(probes.iter().map(|probe| probe.took)).unwrap_or(0.0);
    let off = |probe: &Probe| (probe.took - at.distance(probe.at)).abs().min(most);
    probes.iter().map(off).sum::<f64>() / probes.len().max(1) as f64
}

/// How wrong it is to predict `predicted` where a round trip takes `took`.
fn relative_error(took: f64, predicted: f64) -> f64 {
    let off = (took - predicted).abs();
    ((off - NOISE).max(0.0) / took).min(ERROR_MAX)
}

/// A point that was moved by so many microseconds away from another one; towards it where they are negative.
fn moved(at: Vector, there: Vector, by: f64, rng: &mut Rng) -> Vector {
    let apart = at.distance(there);
    let plane = at.plane_to(there);
    let (x, y) = match plane > 1.0 {
        true => ((at.x - there.x) / apart, (at.y - there.y) / apart),
        // They are in one place: anywhere.
        false => {
            let turn = rng.below(1 << 20) as f64 / f64::from(1 << 20) * std::f64::consts::TAU;
            (turn.cos(), turn.sin())
        }
    };
    Vector {
        x: at.x + by * x,
        y: at.y + by * y,
        height: at.height + by * (at.height + there.height) / apart,
    }
    .bounded()
}

/// The middle one; `None` of none.
fn middle(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests;
