//! Strikes by name: what both worlds let go wrong.

use crate::network::Network;
use crate::numbered::{Kind, Numbered};
use std::fmt;

/// Whether a host that is cut off reaches the control store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlStore {
    /// It does.
    Reached,
    /// It does not.
    CutOff,
}

/// Which directions of a link are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the first to the second, or outward.
    Out,
    /// The other.
    In,
    /// Both.
    Both,
}

/// Something that goes wrong. Hosts are indices; times are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    /// In 1,000: messages get lost, all the time.
    Loses(u64),
    /// In 1,000: messages come twice, all the time.
    Repeats(u64),
    /// In 1,000: messages are late, by up to so much, all the time.
    Delays(u64, u64),
    /// In 1,000: requests to the control store get lost, and come late, all the time.
    StoreFails(u64, u64),
    /// A process ends, and starts again.
    Kill(usize),
    /// The same, a moment later.
    KillSoon(usize, u64),
    /// All processes end.
    KillAll,
    /// The same, and the control store is lost and made anew from what the disks say.
    LoseStore,
    /// A host hears and is heard by no other.
    CutOff(usize, ControlStore),
    /// A host hears nobody, or is heard by nobody.
    CutOneWay(usize, Way),
    /// The link of two hosts.
    CutPair(usize, usize, Way),
    /// The same for so long, from the first to the second.
    CutBriefly(usize, usize, u64),
    /// A host does not reach the control store.
    CutFromStore(usize),
    /// All links work.
    Heal,
    /// The control store answers nobody for so long.
    StoreAway(u64),
    /// A process does nothing for so long.
    Pause(usize, u64),
    /// A disk takes up to so long, or is as fast as ever.
    Slow(usize, Option<u64>),
    /// The next write of a disk fails.
    FailWrite(usize),
    /// A disk is lost for good.
    Wipe(usize),
    /// A block of a disk goes bad.
    Rot(usize, usize),
    /// The same so much later, where there is no other member then.
    RotAlone(usize, usize, u64),
    /// The next block that a disk writes goes to another one's place.
    Misdirect(usize),
    /// The owner is cut off, is replaced, and comes back so much later to those who have forgotten why.
    OldGuard(usize, u64),
    /// The owner's words to one host are lost, and it ends so much later.
    HalfTold(usize, usize, u64),
    /// The owner's words to one host are lost, and it is cut off from all so much later.
    LastWords(usize, usize, u64),
    /// A former owner is killed, and all links work again, but that from the new one to a member for so long.
    ComesBack(usize, usize, usize, u64),
    /// The owner is to leave, and takes no changes for so long.
    HandOver(usize, u64),
    /// The owner is to cede to a member, and takes no changes for so long.
    Cede(usize, usize, u64),
    /// A host is cut off from the others so much later, and one of them hears of that.
    Parted(usize, usize, u64),
    /// What an owner has ceded to a host comes so late, and perhaps to the next process there.
    LateCession(usize, bool, u64),
    /// A host's proposal to take over is late, and the links work again.
    LateTakeover(usize),
    /// A host's clock shows so much more from then on.
    ClockJumps(usize, u64),
    /// A call to fetch the state comes once more to a host, so much later.
    LateCall(usize, u64),
    /// The control store goes away for so long while a joiner may be listed, which loses its disk so much later.
    JoinerUnheard(usize, u64, Option<u64>),
}

/// A time for people.
struct Ms(u64);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0.div_ceil(1_000))
    }
}

/// A host for people.
struct Host(usize);

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0 + 1)
    }
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Loses(rate) => write!(f, "of 1,000 messages {rate} get lost"),
            Self::Repeats(rate) => write!(f, "of 1,000 messages {rate} come twice"),
            Self::Delays(rate, most) => {
                write!(
                    f,
                    "of 1,000 messages {rate} are late, by up to {}",
                    Ms(most)
                )
            }
            Self::StoreFails(loss, late) => write!(
                f,
                "of 1,000 requests to the control store {loss} get lost, and {late} come late"
            ),
            Self::Kill(node) => write!(f, "{} is killed", Host(node)),
            Self::KillSoon(node, after) => {
                write!(f, "{} is killed {} later", Host(node), Ms(after))
            }
            Self::KillAll => write!(f, "all are killed"),
            Self::LoseStore => write!(f, "all are killed, and the control store is lost"),
            Self::CutOff(node, ControlStore::Reached) => write!(f, "{} is cut off", Host(node)),
            Self::CutOff(node, ControlStore::CutOff) => {
                write!(f, "{} is cut off, from the control store too", Host(node))
            }
            Self::CutOneWay(node, Way::In) => write!(f, "{} hears nobody", Host(node)),
            Self::CutOneWay(node, Way::Out | Way::Both) => {
                write!(f, "{} is heard by nobody", Host(node))
            }
            Self::CutPair(a, b, Way::Both) => write!(f, "{} and {} are cut", Host(a), Host(b)),
            Self::CutPair(a, b, Way::Out | Way::In) => {
                write!(f, "{} is not heard by {}", Host(a), Host(b))
            }
            Self::CutBriefly(a, b, span) => write!(
                f,
                "{} is not heard by {} for {}",
                Host(a),
                Host(b),
                Ms(span)
            ),
            Self::CutFromStore(node) => {
                write!(f, "{} is cut off from the control store", Host(node))
            }
            Self::Heal => write!(f, "all links work again"),
            Self::StoreAway(span) => write!(f, "the control store is away for {}", Ms(span)),
            Self::Pause(node, span) => write!(f, "{} is paused for {}", Host(node), Ms(span)),
            Self::Slow(node, Some(most)) => {
                write!(f, "{} has a slow disk: up to {}", Host(node), Ms(most))
            }
            Self::Slow(node, None) => write!(f, "{} has a fast disk again", Host(node)),
            Self::FailWrite(node) => write!(f, "the next write of {} fails", Host(node)),
            Self::Wipe(node) => write!(f, "{} loses its disk", Host(node)),
            Self::Rot(node, block) => write!(f, "block {block} of {} rots", Host(node)),
            Self::RotAlone(node, block, after) => write!(
                f,
                "block {block} of {}, which is alone, rots {} later",
                Host(node),
                Ms(after)
            ),
            Self::Misdirect(node) => {
                write!(
                    f,
                    "the next block that {} writes goes elsewhere",
                    Host(node)
                )
            }
            Self::OldGuard(owner, after) => write!(
                f,
                "{}, the owner, is cut off, and {} later the others forget",
                Host(owner),
                Ms(after)
            ),
            Self::HalfTold(owner, other, after) => write!(
                f,
                "{}, the owner, is not heard by {}, and is killed {} later",
                Host(owner),
                Host(other),
                Ms(after)
            ),
            Self::LastWords(owner, other, after) => write!(
                f,
                "{}, the owner, is not heard by {}, and is cut off {} later",
                Host(owner),
                Host(other),
                Ms(after)
            ),
            Self::ComesBack(former, owner, member, span) => write!(
                f,
                "{} is killed, and all links work again, but {} is not heard by {} for {}",
                Host(former),
                Host(owner),
                Host(member),
                Ms(span)
            ),
            Self::HandOver(owner, span) => {
                write!(
                    f,
                    "{}, the owner, is to leave within {}",
                    Host(owner),
                    Ms(span)
                )
            }
            Self::Cede(owner, heir, span) => write!(
                f,
                "{}, the owner, is to cede to {} within {}",
                Host(owner),
                Host(heir),
                Ms(span)
            ),
            Self::Parted(node, by, after) => write!(
                f,
                "{} is cut off {} later, and {} is told",
                Host(node),
                Ms(after),
                Host(by)
            ),
            Self::LateCession(heir, false, late) => {
                write!(f, "what is ceded to {} comes {} late", Host(heir), Ms(late))
            }
            Self::LateCession(heir, true, late) => write!(
                f,
                "what is ceded to {}, which is killed, comes {} late",
                Host(heir),
                Ms(late)
            ),
            Self::LateTakeover(node) => {
                write!(
                    f,
                    "the takeover of {} is late, and all links work again",
                    Host(node)
                )
            }
            Self::ClockJumps(node, span) => {
                write!(f, "the clock of {} jumps by {}", Host(node), Ms(span))
            }
            Self::LateCall(joiner, after) => write!(
                f,
                "{} is called once more to fetch the state, {} later",
                Host(joiner),
                Ms(after)
            ),
            Self::JoinerUnheard(joiner, away, wiped) => {
                write!(
                    f,
                    "the control store is away for {} while {} may be listed",
                    Ms(away),
                    Host(joiner)
                )?;
                match wiped {
                    Some(after) => write!(f, ", which loses its disk {} later", Ms(after)),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Counts the network's lasting faults among the strikes, and mends those that are left out.
pub(crate) fn number_lasting(net: &mut Network, numbered: &mut Numbered) {
    let faults = [
        (net.loss, Strike::Loses(net.loss)),
        (net.repeat, Strike::Repeats(net.repeat)),
        (net.tail, Strike::Delays(net.tail, net.tail_us)),
    ];
    let rates = [&mut net.loss, &mut net.repeat, &mut net.tail];
    for ((rate, strike), kept) in faults.into_iter().zip(rates) {
        let number = numbered.by_clock().number;
        let what = || strike.to_string();
        if rate > 0 && !numbered.takes_place((Kind::Strike, number), 0, what) {
            *kept = 0;
        }
    }
}
