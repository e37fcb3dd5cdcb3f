//! Deliberate faults of striped files, by name: for the simulator's own test.

perigee_types::plants! {
    StaleAdmitted = "a column is written and read by who has not heard that it was cut";
    GrowthBesideBytes = "bytes past the end go to their column before the file's owner knows of them";
    CutEndedEarly = "a file gets shorter before all its columns are cut";
    CutAnsweredEarly = "a cut is answered before the file has got shorter";
    CutIsNoBarrier = "what goes beyond the end of a cut that is not done is let in";
    ReadBeyondCut = "a program reads beyond the end of a cut that is not done";
    GrowthLeftOut = "a write past the end does not tell the file's owner";
    GrantedBesideCut = "a lock is granted while columns do not know yet that another host has lost its own";
    FencedIsTold = "a host that has lost its locks hears of the cut that keeps it out";
    FencedInPart = "the end of lost locks begins no cut";
    PlaceOutlivesCut = "an append goes to the place that it was given before a cut";
}
