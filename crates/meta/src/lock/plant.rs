//! Deliberate faults of the lock service, by name: for the simulator's own test.

perigee_types::plants! {
    LockOvertakes = "a lock is given to who asks for it, though others came before";
    LongCycleMissed = "only cycles of two who wait for each other's locks are found";
    CycleOverFilesMissed = "who waits for a lock on another file is not part of a cycle";
    GrantNotReplicated = "a lock is granted before its record is on the whole chain";
    LocksEndWithOwner = "a new owner drops the locks of the one before";
    SilentSessionEnds = "the locks of a host end that does not answer, though it shows signs of life";
    FenceNotChecked = "a session changes a file under a lock that was ended";
    FencesNotRestored = "a new owner does not know whose locks were ended";
    EndedLockForgotten = "the locks of a host that is gone end as if it had given them back";
    TokenUsedAgain = "a new owner numbers its grants as the one before did";
    KeptOverCall = "a host that is called back keeps the lock when its last use ends";
    RefusedUncalled = "a request that does not wait is refused for a lock that its host only keeps";
    RefusedForSilence = "a request that does not wait is refused for a lock whose host does not answer";
    KeptBeyondLife = "a host that shows no sign of life serves uses by locks that it keeps";
    GrantOutlivesLapse = "a host keeps a lock whose grant came after its sign of life had lapsed";
    CoverEndsBare = "a host that gives back a cover does not say which locks its programs have under it";
    CoverBeyondLife = "a host that shows no sign of life decides about locks under a cover";
    CoverOverRequest = "a host asks for a cover while it has requests for locks under way";
    WaitsUntold = "hosts do not tell of waits that they decide about";
    EndNotReplicated = "a host may forget its cover before the record of what it has is on the whole chain";
    EarlyCallForgotten = "a host gives back a lock that is called for before its grant has come, and uses it all the same";
}
