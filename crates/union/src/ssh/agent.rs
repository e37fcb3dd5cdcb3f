//! The side of a member that was started over SSH: it serves until its starter is gone.

use super::boot;
use super::launch::MARK;
use crate::branch::{Branch, named};
use crate::channel::{Channel, Duplex, Event, Side};
use crate::member::Union;
use crate::ways::Carrier;
use crate::wire::{Order, VERSION, Welcome, Word, decode, encode};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use perigee_net::{Identity, NodeKey};
use perigee_types::NodeId;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// How often both sides say that they are here.
pub const PULSE: Duration = Duration::from_secs(1);

/// Makes a mount of the union on this host; what it gives unmounts when it is dropped.
pub type Mounter = Box<
    dyn FnOnce(Arc<Union>, PathBuf) -> BoxFuture<'static, Result<Box<dyn Send>, String>> + Send,
>;

/// Serves on standard input and output, until the starter ends or says nothing any more.
///
/// # Errors
/// Why it could not serve; the starter was told.
pub async fn serve(mounter: Mounter) -> Result<(), String> {
    let mut out = tokio::io::stdout();
    let spoke = async {
        out.write_all(format!("{MARK} speaks\n").as_bytes()).await?;
        out.flush().await
    };
    spoke
        .await
        .map_err(|error| format!("nobody listens: {error}"))?;
    let (events, mut heard) = mpsc::channel(64);
    let channel = Channel::start(Side::Member, tokio::io::stdin(), out, events);
    let failed = match begin(&channel, &mut heard, mounter).await {
        Ok((union, mount)) => {
            tell_pulse(&channel, &union);
            listen(&union, heard).await;
            drop(mount);
            union.stop().await;
            return Ok(());
        }
        Err(why) => why,
    };
    channel.control(encode(&Word::Failed(failed.clone()))).await;
    // The word has to leave before this ends.
    _ = tokio::time::timeout(Duration::from_secs(2), channel.over()).await;
    Err(failed)
}

type Begun = (Arc<Union>, Option<Box<dyn Send>>);

async fn begin(
    channel: &Arc<Channel>,
    heard: &mut mpsc::Receiver<Event>,
    mounter: Mounter,
) -> Result<Begun, String> {
    let key = NodeKey::generate().map_err(|error| error.to_string())?;
    let hello = Word::Hello {
        version: VERSION,
        request: key.request().map_err(|error| error.to_string())?,
    };
    channel.control(encode(&hello)).await;
    let welcome = match next_order(heard).await? {
        Order::Welcome(welcome) => *welcome,
        _ => return Err("the starter said something else first".to_owned()),
    };
    let Welcome {
        me,
        certificate,
        authority,
        branches,
        mountpoint,
        starter,
        settings,
    } = welcome;
    let mountpoint = mountpoint.map(|path| named(&path));
    let mut points: Vec<PathBuf> = mountpoint.iter().cloned().collect();
    if starter.0 == boot() {
        points.push(named(&starter.1));
    }
    let mut open = Vec::new();
    for (id, directory) in branches {
        let directory = named(&directory);
        check_apart(&points, &directory)?;
        let branch = Branch::open(id, &directory)
            .map_err(|error| format!("cannot open `{}`: {error}", directory.display()))?;
        open.push(branch);
    }
    let identity =
        Identity::new(&key, &certificate, &authority).map_err(|error| error.to_string())?;
    let server = ssh_address(SERVER);
    let listen = match (settings.direct, server) {
        (true, Some(IpAddr::V6(_))) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        (true, Some(IpAddr::V4(_))) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        (true, None) | (false, _) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    };
    let union = Union::start((me, settings), open, identity, listen).await;
    let union = union.map_err(|error| error.to_string())?;
    union.set_carrier(Arc::new(Through(Arc::clone(channel))));
    let addresses = server.filter(|_| union.settings.direct);
    let started = Word::Started {
        addresses: addresses
            .map(|ip| SocketAddr::new(ip, union.port()))
            .into_iter()
            .collect(),
        seen: ssh_address(CLIENT),
    };
    channel.control(encode(&started)).await;
    let Some(mountpoint) = mountpoint else {
        return Ok((union, None));
    };
    // A mount looks at the root at once, and so has to know who is there.
    while !take(&union, next_order(heard).await?) {}
    let mount = mounter(Arc::clone(&union), mountpoint).await?;
    channel.control(encode(&Word::Mounted)).await;
    Ok((union, Some(mount)))
}

/// A mount within a branch would find itself there.
fn check_apart(points: &[PathBuf], directory: &Path) -> Result<(), String> {
    let Ok(full) = directory.canonicalize() else {
        return Ok(());
    };
    match points.iter().find(|point| point.starts_with(&full)) {
        None => Ok(()),
        Some(point) => Err(format!(
            "the mount point `{}` lies in `{}`",
            point.display(),
            directory.display()
        )),
    }
}

/// Takes who is there; true: this member is among them.
fn take(union: &Arc<Union>, order: Order) -> bool {
    let Order::Members(members) = order else {
        return false;
    };
    let mut own = members
        .members
        .iter()
        .filter(|member| member.id == union.me);
    let there = own.any(|member| !member.away);
    union.set_members(members);
    there
}

async fn next_order(heard: &mut mpsc::Receiver<Event>) -> Result<Order, String> {
    loop {
        match heard.recv().await {
            Some(Event::Control(bytes)) => match decode(&bytes) {
                Ok(Order::Ping) => {}
                Ok(order) => return Ok(order),
                Err(error) => return Err(error.to_string()),
            },
            Some(Event::Open(_, incoming)) => incoming.refuse().await,
            None => return Err("the starter is gone".to_owned()),
        }
    }
}

/// Words of `SSH_CONNECTION`: the address from which SSH came.
const CLIENT: usize = 0;
/// That of this host at which it was reached.
const SERVER: usize = 2;

fn ssh_address(word: usize) -> Option<IpAddr> {
    let told = std::env::var("SSH_CONNECTION").ok()?;
    told.split_whitespace().nth(word)?.parse().ok()
}

async fn listen(union: &Arc<Union>, mut heard: mpsc::Receiver<Event>) {
    while let Some(event) = heard.recv().await {
        match event {
            Event::Control(bytes) => {
                if let Ok(Order::Members(members)) = decode(&bytes) {
                    union.set_members(members);
                }
            }
            Event::Open(to, incoming) if to == union.me => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, union.port()));
                tokio::spawn(async move {
                    match TcpStream::connect(address).await {
                        Ok(stream) => {
                            _ = stream.set_nodelay(true);
                            incoming.carry(Box::new(stream)).await;
                        }
                        Err(_) => incoming.refuse().await,
                    }
                });
            }
            Event::Open(_, incoming) => incoming.refuse().await,
        }
    }
}

fn tell_pulse(channel: &Arc<Channel>, union: &Arc<Union>) {
    let (channel, union) = (Arc::clone(channel), Arc::downgrade(union));
    tokio::spawn(async move {
        let mut told = None;
        while let Some(union) = union.upgrade() {
            let word = match union.moved(told) {
                Some(coordinate) => {
                    told = Some(coordinate);
                    Word::Coordinate(coordinate.to_note())
                }
                None => Word::Ping,
            };
            drop(union);
            channel.control(encode(&word)).await;
            tokio::time::sleep(PULSE).await;
        }
    });
}

/// Carries connections to other members over the SSH connection that this one was started by.
struct Through(Arc<Channel>);

impl Carrier for Through {
    fn carry(&self, to: NodeId, io: Box<dyn Duplex>) -> BoxFuture<'static, ()> {
        let channel = Arc::clone(&self.0);
        async move { channel.open(to, io).await }.boxed()
    }
}
