//! Deliberate faults of transactions and of at-most-once execution, by name: for the simulator's own test.

perigee_types::plants! {
    VoteBeforeReplicated = "a participant votes before its intent is on its whole chain";
    ReadsNotChecked = "a participant does not check that what was read is so still";
    PreparedNotLocked = "a participant does not lock what it has prepared";
    OwnPartNotLocked = "a coordinator does not lock its own part while others prepare";
    LocksNotRestored = "a new owner does not lock what an earlier one prepared";
    IntentsForgotten = "a new owner drops what an earlier one prepared";
    DecidedBeforeReplicated = "a coordinator tells its decision before it is on the whole chain";
    DecidedWithoutAll = "a coordinator decides when the first participant has prepared";
    UndecidedIsAborted = "a coordinator that is asked before it has decided says that it aborted";
    DecisionForgotten = "a coordinator forgets its decision before all participants have ended their parts";
    EndedBeforeReplicated = "a participant confirms before the end of its part is on its whole chain";
    NumberUsedAgain = "a new owner numbers transactions as the one before did";
    RepeatRunsAgain = "a repeated operation is executed again";
    RepeatRunsBeside = "a repeat is executed beside the first execution, which has not ended";
    HomeAgainForgotten = "an owner keeps no answer of its own host's operation that an earlier owner was sent";
    RepeatNotReplicated = "a repeat is answered before what the first run did is on the whole chain";
    AnswersNotRestored = "a new owner does not know up to where sessions have had their answers";
    ForeignReadNotReplicated = "another container is shown what is not on the whole chain";
    AnswerNotReadAgain = "an answer depends on rows of other containers that were read at several moments";
    LockedIsShown = "an operation reads what a transaction is about to change";
    AnswerBeforeRevoked = "a change is answered before other sessions have forgotten what it changed";
    RevocationOvertaken = "a session keeps an answer that was under way when it was told to forget";
    LeaseFromAnswer = "a lease is counted from the moment when the answer comes";
    RecentNotForgotten = "an owner keeps a committed row that it has read when the row is deleted";
    RecentOutlivesReign = "an owner keeps committed rows that it has read over another owner's time";
    PartRevokesNothing = "a participant votes while others keep what its part changes";
    SeenBeforeRevoked = "a change can be seen before other sessions have forgotten what it changed";
    MovedNameKept = "a session keeps a name that it has moved under the lease on the directory that it came from";
    CededUnderLeases = "an owner cedes while sessions keep what it let them keep";
    RemovedRowNotKept = "a row that is removed is not kept for the newest checkpoint";
    KeptAgain = "what a checkpoint has of a row is replaced when the row changes again";
    CheckpointsNotRestored = "a new owner does not know the checkpoints that earlier ones made";
    HeirGetsNothing = "what is kept for a checkpoint goes with it though the one before needs it";
    OlderCountsAsKept = "a row that is kept for an older checkpoint counts as kept for the newest";
    ReplacedNotKept = "what a rename replaces is not kept where a policy has it kept";
    KeptIsReaped = "what is kept is noted as an orphan, too";
    BroughtBackStays = "what was brought back is still among what is kept";
    PurgedEarly = "what is kept goes before its time";
    KeptOverEpoch = "an owner's own sessions keep names while it reconciles in a new epoch";
}
