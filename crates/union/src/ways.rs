//! How this member reaches the others: directly where the network lets it, and else through SSH.

use crate::channel::Duplex;
use crate::wire::Member;
use futures_util::future::BoxFuture;
use perigee_types::NodeId;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{debug, info};

/// How long an address may take to answer before another way is taken. A firewall says nothing at all.
const ANSWERS: Duration = Duration::from_millis(700);

/// How long a connection is carried before another way is looked for.
const LOOKS_AGAIN: Duration = Duration::from_secs(60);

/// Carries connections through SSH.
pub trait Carrier: Send + Sync {
    /// Carries one to a member until either side ends.
    fn carry(&self, to: NodeId, io: Box<dyn Duplex>) -> BoxFuture<'static, ()>;
}

/// A way to a member.
#[derive(Debug)]
pub struct Way {
    /// Where connections go.
    pub address: SocketAddr,
    /// Whether it goes through SSH.
    pub carried: bool,
    found: Instant,
    relay: Option<JoinHandle<()>>,
}

impl Drop for Way {
    fn drop(&mut self) {
        if let Some(relay) = &self.relay {
            relay.abort();
        }
    }
}

/// The first address of a member that answers.
async fn answering(to: &Member) -> Option<SocketAddr> {
    for address in &to.addresses {
        match timeout(ANSWERS, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return Some(*address),
            Ok(Err(error)) => debug!(member = to.name, %address, %error, "not this way"),
            Err(_) => debug!(member = to.name, %address, "no answer this way"),
        }
    }
    None
}

impl Way {
    /// Whether it is time to look whether the network lets connections past SSH by now; not again for a while.
    pub fn is_to_be_looked_at(&mut self) -> bool {
        let looks = self.carried && self.found.elapsed() > LOOKS_AGAIN;
        if looks {
            self.found = Instant::now();
        }
        looks
    }
}

/// A way past SSH, if there is one.
pub async fn past_ssh(to: &Member) -> Option<Way> {
    answering(to).await.map(|address| Way {
        address,
        carried: false,
        found: Instant::now(),
        relay: None,
    })
}

/// Finds the way to a member: the first of its addresses that answers, or a port of this host's own loopback address from
/// which SSH carries on.
///
/// # Errors
/// No port can be had.
pub async fn find(carrier: &Arc<dyn Carrier>, to: &Member, direct: bool) -> io::Result<Way> {
    if direct && let Some(way) = past_ssh(to).await {
        return Ok(way);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    info!(member = to.name, "is reached through SSH");
    let (carrier, id) = (Arc::clone(carrier), to.id);
    let relay = tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    _ = stream.set_nodelay(true);
                    tokio::spawn(carrier.carry(id, Box::new(stream)));
                }
                // Too many open files, mostly: some will be closed.
                Err(error) => {
                    debug!(%error, "no connection is taken");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(Way {
        address,
        carried: true,
        found: Instant::now(),
        relay: Some(relay),
    })
}
