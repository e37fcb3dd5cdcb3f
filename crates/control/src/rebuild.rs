//! A control store in place of one that was lost.
//!
//! The authority's key was lost with it, so there is a new authority, whom nobody trusts yet: nodes of this machine get
//! their new identities as files ([`RECERTIFIED`]), which whoever starts them puts in place; every other node gets a token
//! with which it is let in again under its number.

use crate::engine::{Engine, EngineConfig};
use crate::gatekeeper::Gatekeeper;
use crate::keeper::Keeper;
use crate::local::LocalControl;
use crate::process::{
    ControlError, certify, choose_address, make_authority, make_beside, make_dir, put_in_place,
    sync_dir, write_address,
};
use crate::wire::AdminError;
use perigee_cluster::codec::Record as _;
use perigee_cluster::rebuild::Rebuilt;
use perigee_cluster::{ControlStore as _, NodeState, Txn, key};
use perigee_net::{ClusterId, JoinToken, PeerName};
use perigee_types::{NodeId, Span};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tracing::info;

/// In the control store's directory: new identities of nodes of this machine, each in a directory that is named as theirs.
pub const RECERTIFIED: &str = "recertified";
/// How long a node may take to come back.
const READMISSION_TTL: Span = Span::from_millis(24 * 3_600_000);
/// Records that one transaction puts; a store of ten thousand containers takes some hundred.
const TXN_PUTS: usize = 64;

/// What was made.
#[derive(Debug)]
pub struct RebuiltControl {
    /// Where it will listen.
    pub address: SocketAddr,
    /// For each node of another machine what lets it in again, within a day.
    pub tokens: BTreeMap<NodeId, JoinToken>,
}

/// Makes the control store of `dir` with these records. `here`: the nodes of this machine, and the names of their
/// directories. Port 0 chooses a free port.
///
/// # Errors
/// There is one already; `listen` is an address that others cannot reach; the disk's. There is no control store then.
pub async fn rebuild_control(
    dir: &Path,
    listen: SocketAddr,
    rebuilt: &Rebuilt,
    here: &BTreeMap<NodeId, String>,
) -> Result<RebuiltControl, ControlError> {
    crate::process::check_absent(dir)?;
    let address = choose_address(listen)?;
    let beside = make_beside(dir)?;
    let cluster = ClusterId(rebuilt.cluster.id);
    let ca = make_authority(&beside, cluster)?;
    write_address(&beside, address)?;
    let identities = beside.join(RECERTIFIED);
    make_dir(&identities)?;
    let mut records = rebuilt.records.clone();
    for node in &rebuilt.nodes {
        let mut node = node.clone();
        if let Some(name) = here.get(&node.id) {
            let place = identities.join(name);
            make_dir(&place)?;
            let serial = certify(&place, &ca, PeerName::Node(node.id))?;
            node.cert_serial = serial.as_bytes().to_vec();
            sync_dir(&place)?;
        } else {
            // No certificate of the old authority is trusted any more.
            node.cert_serial.clear();
        }
        records.insert(key::node(node.id), node.encode());
    }
    sync_dir(&identities)?;
    let config = EngineConfig {
        first: rebuilt.base,
        ..EngineConfig::default()
    };
    let engine = Arc::new(Engine::create(&beside, config)?);
    fill(&engine, records).await?;
    let keeper = Keeper::Embedded(LocalControl::new(engine));
    let gatekeeper = Gatekeeper::new(keeper, ca, address);
    let mut tokens = BTreeMap::new();
    let away = rebuilt.nodes.iter();
    for node in away.filter(|node| node.state != NodeState::Left && !here.contains_key(&node.id)) {
        let token = gatekeeper.create_readmission(node.id, READMISSION_TTL);
        tokens.insert(node.id, token.await?.text.parse()?);
    }
    drop(gatekeeper);
    sync_dir(&beside)?;
    put_in_place(dir, &beside)?;
    info!(%cluster, %address, "made a control store anew");
    Ok(RebuiltControl { address, tokens })
}

async fn fill(
    engine: &Arc<Engine>,
    records: BTreeMap<String, Vec<u8>>,
) -> Result<(), ControlError> {
    let store = LocalControl::new(Arc::clone(engine));
    let records: Vec<(String, Vec<u8>)> = records.into_iter().collect();
    for part in records.chunks(TXN_PUTS) {
        let mut txn = Txn::default();
        for (key, value) in part {
            txn = txn.when(key.clone(), None).put(key.clone(), value.clone());
        }
        let put = store.commit(txn).await;
        put.map_err(AdminError::Store)?;
    }
    Ok(())
}
