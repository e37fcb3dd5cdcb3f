//! Deliberate faults of striped files, by name: for the simulator's own test.

perigee_types::plants! {
    StaleAdmitted = "a column is written and read by who has not heard that it was cut";
    ClaimAfterCut = "a write is answered though the file was cut between its bytes and its claim";
    CutEndedEarly = "a file may grow again before all its columns are cut";
    CutAnsweredEarly = "a cut is answered before all columns know of it";
    GrowsBeforeCutEnds = "a file grows before its last cut has come to its end";
    ClaimLeftOut = "a write past the end does not tell the file's owner";
    PlaceOutlivesCut = "an append goes to the place that it was given before a cut";
}
