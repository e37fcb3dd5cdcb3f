//! The replication protocol's own messages.

use perigee_types::ContainerId;
use serde::{Deserialize, Serialize};

/// Carries one [`perigee_replica::chain::Message`] of a container, encoded, as the payload.
/// Losing, repeating or reordering it is harmless: the protocol counts on nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// Whose chain it concerns.
    pub container: ContainerId,
}
