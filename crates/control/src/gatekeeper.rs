//! Who gets in: join tokens, and the certificates of those who show one.

use crate::keeper::Keeper;
use crate::wire::{AdminError, Admission, Join, JoinRefusal, NewToken, TokenInfo};
use perigee_cluster::transition::{self, Certified};
use perigee_cluster::{
    Admits, ChangeError, ControlStore as _, Directory, NodeState, PlanError, Readmission,
    StoreError, Token, TokenUse, change, key,
};
use perigee_net::{AUDIT, ClusterCa, ClusterId, JoinToken, PeerName, Refusals, SecretHash};
use perigee_types::{ContainerId, NodeId, Span, WallTime};
use std::net::SocketAddr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tracing::{info, warn};

/// The shortest life of a token: a person must be able to carry it to another machine.
const TOKEN_TTL_MIN: Span = Span::from_millis(60_000);
/// The longest life of a token. It is a key to the cluster.
const TOKEN_TTL_MAX: Span = Span::from_millis(30 * 24 * 3600 * 1000);
/// How long void tokens are kept, for those who ask what became of one.
const TOKEN_KEPT_SECS: i64 = 24 * 3600;
/// Characters of a name that are logged.
const NAME_SHOWN: usize = 64;
/// Addresses that a token names, of those that serve the record.
const ADDRESSES_MAX: usize = 8;
/// How often a join begins anew because another change of the record was faster.
const ATTEMPTS_MAX: usize = 32;

/// Makes tokens, and admits who shows one. Holds the key of the certificate authority.
#[derive(Debug)]
pub struct Gatekeeper {
    store: Keeper,
    ca: ClusterCa,
    /// Where the control store is reached, as tokens say.
    address: SocketAddr,
    /// Bounds the lines about those who are not let in.
    refusals: Refusals,
}

/// The wall clock, which tokens go by.
pub(crate) fn wall_now() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // Before 1970 every token is as if new; a clock that wrong opens no door that a token does not.
    let since = since.unwrap_or_default();
    WallTime {
        secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: since.subsec_nanos(),
    }
}

impl Gatekeeper {
    /// The gatekeeper of the cluster of `store`, which others reach at `address`.
    #[must_use]
    pub fn new(store: Keeper, ca: ClusterCa, address: SocketAddr) -> Self {
        Self {
            store,
            ca,
            address,
            refusals: Refusals::default(),
        }
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.ca.cluster()
    }

    /// The record of the cluster now.
    ///
    /// # Errors
    /// The store is away, or holds what this program cannot read.
    pub(crate) async fn directory(&self) -> Result<Directory, AdminError> {
        let list = self.store.list(key::ROOT).await;
        let (list, revision) = list.map_err(AdminError::Store)?;
        Directory::from_list(&list, revision).map_err(|_| AdminError::Unreadable)
    }

    /// Makes a token that lets in one node within `ttl`.
    ///
    /// # Errors
    /// [`AdminError::BadTerm`], or the store's.
    pub async fn create_token(&self, ttl: Span, admits: Admits) -> Result<NewToken, AdminError> {
        let now = wall_now();
        let (token, expires) = self.new_token(now, ttl).await?;
        let hash = token.secret_hash().0;
        change(&self.store, |dir| {
            transition::create_token(dir, hash, expires, admits)
        })
        .await?;
        let id = TokenInfo::of(&hash, expires, None).id;
        let event = "token";
        info!(target: AUDIT, event, outcome = "made", id, expires = expires.secs, ?admits);
        let before = WallTime {
            secs: now.secs - TOKEN_KEPT_SECS,
            nanos: 0,
        };
        change(&self.store, |dir| {
            Ok(transition::forget_tokens(dir, before))
        })
        .await?;
        Ok(NewToken {
            text: token.to_string(),
        })
    }

    /// Makes a token that lets node `id` in again within `ttl`, with what it keeps. Any other for it is void from then on.
    ///
    /// # Errors
    /// [`AdminError::BadTerm`], no such node, one that shows signs of life, or the store's.
    pub async fn create_readmission(&self, id: NodeId, ttl: Span) -> Result<NewToken, AdminError> {
        let (token, expires) = self.new_token(wall_now(), ttl).await?;
        let hash = token.secret_hash().0;
        change(&self.store, |dir| {
            transition::create_readmission(dir, id, hash, expires)
        })
        .await?;
        let event = "readmission";
        info!(target: AUDIT, event, outcome = "made", node = %id, expires = expires.secs);
        Ok(NewToken {
            text: token.to_string(),
        })
    }

    /// Where the record is served: here, and by others.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, AdminError> {
        let controls = self.directory().await?.controls;
        let mut all = vec![self.address];
        let others = controls.values().map(|known| known.record.address);
        all.extend(others.filter(|address| *address != self.address));
        all.truncate(ADDRESSES_MAX);
        Ok(all)
    }

    async fn new_token(
        &self,
        now: WallTime,
        ttl: Span,
    ) -> Result<(JoinToken, WallTime), AdminError> {
        if !(TOKEN_TTL_MIN..=TOKEN_TTL_MAX).contains(&ttl) {
            return Err(AdminError::BadTerm { ttl });
        }
        let secs = i64::try_from(ttl.as_micros() / 1_000_000).unwrap_or(i64::MAX);
        let expires = WallTime {
            secs: now.secs.saturating_add(secs),
            nanos: 0,
        };
        let token = JoinToken::new(
            self.addresses().await?,
            self.ca.cluster(),
            self.ca.fingerprint(),
            expires.secs.unsigned_abs(),
        );
        let token = token.map_err(|_| AdminError::NoRandomness)?;
        Ok((token, expires))
    }

    /// The tokens that can be used, and those that were or expired of late.
    ///
    /// # Errors
    /// The store is away, or holds what this program cannot read.
    pub async fn list_tokens(&self) -> Result<Vec<TokenInfo>, AdminError> {
        let directory = self.directory().await?;
        let tokens = directory.tokens.values().map(|known| &known.record);
        Ok(tokens
            .map(|t| TokenInfo::of(&t.hash, t.expires, t.used_by.as_ref()))
            .collect())
    }

    /// Lets in whoever shows a token, all or nothing: the token is spent, the node registered and its
    /// home container made in one transaction.
    ///
    /// # Errors
    /// See [`JoinRefusal`].
    pub async fn admit(&self, join: Join) -> Result<Admission, JoinRefusal> {
        let admitted = self.try_admit(&join).await;
        let event = "join";
        // a stranger's word, which may be long
        let name: String = join.request.name.chars().take(NAME_SHOWN).collect();
        match &admitted {
            Ok(a) => info!(target: AUDIT, event, outcome = "admitted", node = %a.node, name),
            Err(why) => {
                if let Some(left_out) = self.refusals.line(Instant::now()) {
                    info!(target: AUDIT, event, outcome = "refused", name, %why, left_out);
                }
            }
        }
        admitted
    }

    async fn try_admit(&self, join: &Join) -> Result<Admission, JoinRefusal> {
        for _ in 0..ATTEMPTS_MAX {
            let directory = self.directory().await.map_err(|_| JoinRefusal::Away)?;
            // The secret comes first: who has none learns nothing else.
            let pass = find_pass(&directory, &join.secret)?;
            let token = pass.token();
            let now = wall_now();
            if let Some(used) = &token.used_by {
                if used.request == join.certificate_request && now < token.expires {
                    let home = directory.home_of(used.node).map(|container| container.id);
                    return Ok(self.admission(used.node, home, used.certificate.clone()));
                }
                return Err(JoinRefusal::Plan(PlanError::TokenUsed { node: used.node }));
            }
            if now >= token.expires {
                return Err(JoinRefusal::Plan(PlanError::TokenExpired));
            }
            // The certificate names the node's number, so it is made anew for each attempt.
            let node = match pass {
                Pass::In(_) => {
                    if let Some(used) = admitted_before(&directory, &join.certificate_request) {
                        let home = directory.home_of(used.node).map(|container| container.id);
                        return Ok(self.admission(used.node, home, used.certificate.clone()));
                    }
                    transition::next_node(&directory).map_err(JoinRefusal::Plan)?
                }
                Pass::Again(readmission) => readmission.node,
            };
            let issued = self
                .ca
                .issue(&join.certificate_request, PeerName::Node(node));
            let (certificate, serial) = issued.map_err(|error| {
                warn!(%error, "a certificate request is not valid");
                JoinRefusal::BadCertificateRequest
            })?;
            let certified = Certified {
                request: join.certificate_request.clone(),
                certificate,
                serial: serial.as_bytes().to_vec(),
            };
            let (hash, request) = (token.hash, &join.request);
            let planned = match pass {
                Pass::In(_) => transition::join(&directory, hash, &certified, request, now)
                    .map(|planned| (planned.txn, planned.made.home.map(|home| home.id))),
                Pass::Again(_) => {
                    let home = directory.home_of(node).map(|home| home.id);
                    transition::readmit(&directory, hash, &certified, request, now)
                        .map(|planned| (planned.txn, home))
                }
            };
            let (txn, home) = planned.map_err(JoinRefusal::Plan)?;
            match self.store.commit(txn).await {
                Ok(_) => return Ok(self.admission(node, home, certified.certificate)),
                Err(StoreError::Conflict { .. }) => {}
                Err(_) => return Err(JoinRefusal::Away),
            }
        }
        Err(JoinRefusal::Away)
    }

    fn admission(&self, node: NodeId, home: Option<ContainerId>, certificate: String) -> Admission {
        Admission {
            cluster: self.ca.cluster().0,
            node,
            home,
            certificate,
            authority: self.ca.certificate().to_owned(),
        }
    }
}

/// The admission of the very same request by another token: its node never heard the answer, or lost
/// it, and asks again with a token that is good. That one is not spent.
fn admitted_before<'a>(directory: &'a Directory, request: &str) -> Option<&'a TokenUse> {
    let tokens = directory.tokens.values();
    let mut used = tokens.filter_map(|known| known.record.used_by.as_ref());
    used.find(|used| {
        let node = directory.node(used.node);
        used.request == request && node.is_some_and(|node| node.state != NodeState::Left)
    })
}

/// What a secret opens.
#[derive(Clone, Copy)]
enum Pass<'a> {
    /// The cluster, to a new node.
    In(&'a Token),
    /// The cluster, to a node that was in it.
    Again(&'a Readmission),
}

impl<'a> Pass<'a> {
    fn token(self) -> &'a Token {
        match self {
            Self::In(token) => token,
            Self::Again(readmission) => &readmission.token,
        }
    }
}

fn find_pass<'a>(directory: &'a Directory, secret: &[u8]) -> Result<Pass<'a>, JoinRefusal> {
    let tokens = directory.tokens.values().map(|known| &known.record);
    let readmissions = directory.readmissions.values().map(|known| &known.record);
    let mut passes = tokens.map(Pass::In).chain(readmissions.map(Pass::Again));
    let found = passes.find(|pass| SecretHash(pass.token().hash).matches(secret));
    found.ok_or(JoinRefusal::Plan(PlanError::UnknownToken))
}

impl From<ChangeError> for AdminError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Plan(why) => Self::Plan(why),
            ChangeError::Store(error) => Self::Store(error),
            ChangeError::Decode(_) => Self::Unreadable,
        }
    }
}
