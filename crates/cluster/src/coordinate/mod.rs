//! Where nodes are in the network: points whose distances predict round trips, so that a cluster of n nodes needs to measure
//! far fewer than all n² of them.
//!
//! A [`Coordinate`] is what a node tells of itself, a [`Vivaldi`] how it finds out (Dabek, Cox, Kaashoek and Morris,
//! "Vivaldi: a decentralized network coordinate system", SIGCOMM 2004, of which PERFUSE, section III.B, makes its map).

mod filter;
mod vivaldi;

pub use vivaldi::{PROBES, Vivaldi};

use perigee_types::Span;
use serde::{Deserialize, Serialize};

/// No point is farther out than so many microseconds: what is said to be is taken for that.
const REACH: f64 = 10e6;
/// The least height, in microseconds: what a frame costs at both ends.
const HEIGHT_MIN: f64 = 20.0;
/// The least error: nobody is believed blindly.
const ERROR_MIN: f64 = 0.02;
/// The error of who knows nothing yet.
const ERROR_MAX: f64 = 1.5;
/// Beyond this error a point says nothing.
const ERROR_KNOWN: f64 = 0.5;

/// A point of the plane and a height above it, in microseconds, and how sure its node is of it.
///
/// The plane stands for what lies between sites; the height, for what every message of a node has to pass beside that
/// (the height vectors of Vivaldi). Whole numbers: records that hold one are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Coordinate {
    x: i32,
    y: i32,
    height: u32,
    /// Relative error of the round trips that it predicts, in thousandths.
    error: u16,
}

/// The longest encoded coordinate: three numbers of up to five bytes, and one of three.
pub const NOTE_LEN_MAX: usize = 18;

impl Coordinate {
    fn of(at: Vector, error: f64) -> Self {
        // Conversions from floating point stay within the bounds of the type.
        Self {
            x: at.x.round() as i32,
            y: at.y.round() as i32,
            height: at.height.round() as u32,
            error: (error * 1e3).round() as u16,
        }
    }

    fn vector(self) -> Vector {
        Vector {
            x: f64::from(self.x),
            y: f64::from(self.y),
            height: f64::from(self.height),
        }
        .bounded()
    }

    fn relative_error(self) -> f64 {
        (f64::from(self.error) / 1e3).clamp(ERROR_MIN, ERROR_MAX)
    }

    /// Whether its node knows where it is.
    #[must_use]
    pub fn is_known(self) -> bool {
        self.relative_error() <= ERROR_KNOWN
    }

    /// The place on the plane, in microseconds.
    #[must_use]
    pub fn plane(self) -> [f64; 2] {
        let at = self.vector();
        [at.x, at.y]
    }

    /// What every message of its node has to pass beside the way over the plane.
    #[must_use]
    pub fn height(self) -> Span {
        Span(self.vector().height as u64)
    }

    /// How wrong the predictions of its node were lately, in thousandths of the round trips.
    #[must_use]
    pub fn error_in_thousandths(self) -> u16 {
        self.error
    }

    /// The round trip that it and another one predict.
    #[must_use]
    pub fn distance(self, other: Self) -> Span {
        Span(self.vector().distance(other.vector()) as u64)
    }

    /// How far it has moved from another one of the same node.
    #[must_use]
    pub fn moved(self, from: Self) -> Span {
        let (a, b) = (self.vector(), from.vector());
        let height = (a.height - b.height).abs();
        Span(((a.x - b.x).hypot(a.y - b.y) + height) as u64)
    }

    /// As it travels with the answers to pings; at most [`NOTE_LEN_MAX`] bytes.
    #[must_use]
    pub fn to_note(self) -> Vec<u8> {
        // Four numbers: there is nothing that could not be written.
        postcard::to_allocvec(&self).unwrap_or_default()
    }

    /// What a peer sent; `None`: it says nothing, or is no coordinate.
    #[must_use]
    pub fn from_note(note: &[u8]) -> Option<Self> {
        let (coordinate, rest) = postcard::take_from_bytes(note).ok()?;
        rest.is_empty().then_some(coordinate)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Vector {
    x: f64,
    y: f64,
    height: f64,
}

impl Vector {
    fn plane_to(self, other: Self) -> f64 {
        (self.x - other.x).hypot(self.y - other.y)
    }

    fn distance(self, other: Self) -> f64 {
        self.plane_to(other) + self.height + other.height
    }

    /// A number that is none becomes 0.
    fn bounded(self) -> Self {
        let number = |n: f64| if n.is_finite() { n } else { 0.0 };
        Self {
            x: number(self.x).clamp(-REACH, REACH),
            y: number(self.y).clamp(-REACH, REACH),
            height: number(self.height).clamp(HEIGHT_MIN, REACH),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::Rng;

    #[test]
    fn a_note_is_read_as_it_was_written_and_nothing_else_is_one() {
        let (x, y, height) = (-2_000_000.4, 1_000_000.0, 1_234.0);
        let told = Coordinate::of(Vector { x, y, height }, 0.25);
        assert_eq!(Coordinate::from_note(&told.to_note()), Some(told));
        assert_eq!(told.height(), Span(1_234));
        assert!(told.is_known());
        assert_eq!(Coordinate::from_note(&[]), None);
        assert_eq!(
            Coordinate::from_note(&[told.to_note(), vec![0]].concat()),
            None
        );
        let widest = Coordinate {
            x: i32::MIN,
            y: i32::MIN,
            height: u32::MAX,
            error: u16::MAX,
        };
        assert!(widest.to_note().len() <= NOTE_LEN_MAX);
        assert!(!widest.is_known());
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            let len = rng.below(20) as usize;
            let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
            if let Some(read) = Coordinate::from_note(&bytes) {
                // However far out: within bounds.
                assert!(read.distance(widest) <= Span(6 * REACH as u64));
            }
        }
    }
}
