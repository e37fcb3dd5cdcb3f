//! Deliberate faults of the protocol, by name: the worth of the simulator is the share that it finds.

perigee_types::plants! {
    NoFence = "members take records and grant leases to the owner of an older epoch";
    AckBeforePersist = "a member acknowledges before its disk has the records";
    PromiseNotPersisted = "the promise of a new epoch is answered, and never written";
    ViewNotWritten = "a member acknowledges under a view that its disk does not have";
    RemoteReadUnreplicated = "another host is shown what only the owner has";
    CommitWithoutAll = "a record is committed when one other member has it";
    JoinerListedEarly = "a joiner is listed before it has the data";
    JoinerNotAwaited = "commits do not wait for a joiner that is being listed";
    LeaseWithoutJoiner = "the owner's lease does not wait for a joiner that may be listed";
    LongLease = "the owner holds its lease longer than the members grant it";
    EagerTakeover = "a member proposes itself while a lease that it granted still runs";
    GrantWhileProposing = "a member goes on granting while its own proposal may win";
    FetchedWithoutAsOf = "fetched bytes are valid although the log here has not what they include";
    DurableIsEnough = "fetched bytes are valid when what they include is durable here, not yet committed";
    NoInvalidationOnTruncation = "regions of truncated records stay valid";
    RestartedOwnerKeepsEpoch = "a restarted owner goes on in its old epoch";
    EpochBackward = "an older view replaces a newer one";
    WipedMemberVotes = "a member whose disk was wiped acknowledges and takes over";
    UnknownIsLost = "a proposal of unknown outcome is taken as lost";
    AckUnmatched = "a member acknowledges records that it did not compare with the owner's";
    DurableAfterTruncation = "a write that was truncated counts as durable";
    RevertUnlogged = "a new owner keeps older bytes and does not tell the members";
    UnsyncedTrusted = "a restarted node trusts bytes that were never synced";
    SyncUnfenced = "a member tells the owner of an older epoch that its data is on disk";
    SyncForgetsReplaced = "a member's sync does not wait for bytes that a later record replaces before they came";
    StaleFrontier = "a joiner that lost its disk is admitted by what the lost one had acknowledged";
    StateDiscardsAcked = "an installed state replaces records that were acknowledged";
    ContentTooOld = "bytes that include an owner's newest writes are given out as of the last commit";
    CommitsForgotten = "a restarted node serves bytes of later records than it knows to be committed";
    EmptyStorageTrusted = "a node that joins counts as complete from its first promise";
    HolesMadeAgain = "a restarted node makes the holes of its log again, over what was written after them";
    HandOverEarly = "an owner that leaves hands over before the members have all that it has";
    ChecksumIgnored = "a block that is not what its checksum says is shown";
    CorruptNotFetched = "a block that is not what its checksum says is refused, and not replaced";
    ChecksumMoves = "a checksum lies beside its block: a block that is written to another one's place takes it along";
    WriteNotNoted = "an owner puts bytes in place before a note on its disk says so";
    NoteGoesEarly = "the note of a write goes before its record is stored, and not with it";
    NoteForgetsLater = "the note of a write goes with its record, though later writes to the file have none";
    NotedTrusted = "a restarted node trusts bytes that are noted";
    UnsummedTrusted = "a restarted node trusts bytes that are not what their checksums say";
    GivenUpTooOld = "bytes that are given up may come from a member that has not heard of the last commits";
    OwnWriteFetchedOver = "bytes that an owner fetches are put over what it has written since, and has no record yet";
    LostWriteTrusted = "an owner that is replaced trusts what it has written and has no record";
    FsyncLocalOnly = "fsync does not wait for the data of the members";
}
