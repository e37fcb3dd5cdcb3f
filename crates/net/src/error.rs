//! What can go wrong, as data.

use bytes::Bytes;
use std::io;
use std::ops::RangeInclusive;

use crate::frame::{FrameError, Kind};
use crate::identity::{IdentityError, PeerName};

/// The service's own refusal. The transport does not read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The service's code.
    pub code: u16,
    /// What goes with the code.
    pub detail: Bytes,
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The service ran the call and refused it.
    #[error("refused with code {}", .0.code)]
    Refused(Refusal),
    /// No connection could be opened. The call was never sent.
    #[error("{peer} cannot be reached: {cause}")]
    Unreachable {
        /// Whom.
        peer: PeerName,
        /// Why the last attempt failed.
        cause: ConnectError,
    },
    /// No answer came in time. The call may have run, and may still run.
    #[error("no answer before the deadline")]
    DeadlineExceeded,
    /// The connection was lost, or the peer restarted, after the call was sent. It may have run, at most once.
    #[error("the outcome is unknown: the connection was lost after the call was sent")]
    Lost,
    /// This process shuts its network down.
    #[error("the network is shut down")]
    Closed,
    /// The request exceeds a frame. It was not sent.
    #[error("{what} of {len} bytes, the limit is {max}")]
    TooLarge {
        /// Body or payload.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The service's answer exceeds a frame. The call did run.
    #[error("the answer exceeds the limit of a frame")]
    AnswerTooLarge,
    /// The service panicked. The call ran, wholly or in part.
    #[error("the service failed while it ran the call")]
    Failed,
}

/// The transport's own answers in place of the service's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call ran; its answer does not fit a frame.
    AnswerTooLarge,
    /// A repeat of a call whose answer is no longer kept.
    Forgotten,
    /// The service panicked.
    Failed,
    /// The deadline had passed when the call arrived; it did not run.
    Late,
}

impl Fault {
    pub(crate) fn number(self) -> u16 {
        match self {
            Self::AnswerTooLarge => 1,
            Self::Forgotten => 2,
            Self::Failed => 3,
            Self::Late => 4,
        }
    }

    /// What the caller makes of a fault's number; one that it does not know leaves the outcome open.
    pub(crate) fn error(number: u16) -> CallError {
        match number {
            1 => CallError::AnswerTooLarge,
            3 => CallError::Failed,
            4 => CallError::DeadlineExceeded,
            _ => CallError::Lost,
        }
    }
}

/// Why a connection could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nobody said where the peer is ([`crate::Network::set_address`]).
    #[error("its address is not known")]
    NoAddress,
    /// The network refused.
    #[error("{detail}")]
    Io {
        /// The class of the error.
        kind: io::ErrorKind,
        /// The system's words.
        detail: String,
    },
    /// TLS failed: another authority, another name, or the peer refused our certificate.
    #[error("TLS: {detail}")]
    Tls {
        /// What failed.
        detail: String,
    },
    /// The whole handshake took too long.
    #[error("the handshake took too long")]
    Timeout,
    /// The peer's certificate is revoked.
    #[error("its certificate is revoked")]
    Revoked,
    /// No version that both sides speak.
    #[error("it speaks protocol {}..{}, this binary speaks {}..{}", theirs.start(), theirs.end(), ours.start(), ours.end())]
    Version {
        /// What the peer speaks.
        theirs: RangeInclusive<u16>,
        /// What we speak.
        ours: RangeInclusive<u16>,
    },
    /// The peer belongs to another cluster.
    #[error("it belongs to another cluster")]
    OtherCluster,
    /// A younger process with our name has connected to the peer since.
    #[error("another process has taken this one's name since")]
    Superseded,
    /// The peer did not keep to the protocol.
    #[error("it broke the protocol: {detail}")]
    Protocol {
        /// How.
        detail: String,
    },
}

/// Why the network did not start.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The address cannot be listened on.
    #[error("cannot listen: {0}")]
    Listen(#[source] io::Error),
    /// The identity is not usable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// Limits that contradict each other.
    #[error("the limits contradict each other: {}", faults.join("; "))]
    Limits {
        /// All that do not hold.
        faults: Vec<&'static str>,
    },
    /// No random bytes.
    #[error(transparent)]
    Randomness(#[from] crate::crypto::NoRandomness),
}

/// Why a join did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The token's time is over.
    #[error("the join token has expired")]
    Expired,
    /// The request exceeds what may be sent without a certificate.
    #[error("join request of {len} bytes, the limit is {max}")]
    TooLarge {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// None of the token's addresses answered as a member of its cluster; the last one's reason.
    #[error("cannot reach the cluster: {0}")]
    Unreachable(ConnectError),
    /// The connection was lost after the request was sent: whether it took effect is unknown.
    #[error("the connection was lost before the answer came")]
    Lost,
    /// The cluster refused.
    #[error("refused with code {}", .0.code)]
    Refused(Refusal),
}

/// Why a connection ended. Each is counted ([`crate::NetStats::disconnects`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Ended {
    #[error("the peer closed it")]
    Closed,
    #[error("the connection failed: {0}")]
    Io(io::ErrorKind),
    #[error("TLS: {0}")]
    Tls(String),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("the connection ended inside a frame")]
    Truncated,
    #[error("a frame of kind {0:?} that has no place here")]
    Unexpected(Kind),
    #[error("nothing came for too long")]
    Idle,
    #[error("a frame took too long to arrive")]
    SlowFrame,
    #[error("the peer took nothing for too long")]
    SlowReader,
    #[error("the peer opened another connection in its place")]
    Replaced,
    #[error("a certificate was revoked")]
    Revoked,
    #[error("the peer showed no certificate")]
    NoCertificate,
    #[error("the peer's certificate names no member: {0}")]
    WrongName(String),
    #[error("the handshake took too long")]
    HandshakeTimeout,
    #[error("too many handshakes at once")]
    TooManyHandshakes,
    #[error("hello refused: {0}")]
    Hello(&'static str),
    #[error("closed on request")]
    Asked,
    #[error("the network is shut down")]
    Shutdown,
}

impl Ended {
    /// The name under which it is counted.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Io(_) => "io",
            Self::Tls(_) => "tls",
            Self::Frame(FrameError::UnknownFormat { .. }) => "frame_format",
            Self::Frame(FrameError::UnknownKind { .. }) => "frame_kind",
            Self::Frame(FrameError::FieldOutOfRange) => "frame_field",
            Self::Frame(FrameError::BodyTooLong { .. } | FrameError::PayloadTooLong { .. }) => {
                "frame_too_long"
            }
            Self::Frame(FrameError::Checksum { .. }) => "frame_checksum",
            Self::Truncated => "frame_truncated",
            Self::Unexpected(_) => "frame_unexpected",
            Self::Idle => "idle",
            Self::SlowFrame => "slow_frame",
            Self::SlowReader => "slow_reader",
            Self::Replaced => "replaced",
            Self::Revoked => "revoked",
            Self::NoCertificate => "no_certificate",
            Self::WrongName(_) => "wrong_name",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::TooManyHandshakes => "too_many_handshakes",
            Self::Hello(_) => "hello",
            Self::Asked => "asked",
            Self::Shutdown => "shutdown",
        }
    }

    /// Whether it is part of a normal life.
    pub(crate) fn is_ordinary(&self) -> bool {
        matches!(
            self,
            Self::Closed | Self::Io(_) | Self::Idle | Self::Replaced | Self::Asked | Self::Shutdown
        )
    }
}
