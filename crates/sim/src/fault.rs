//! The deliberate faults of all rooms, by name.

/// A deliberate fault of any world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Of a replicated container.
    Chain(perigee_replica::Plant),
    /// Of names.
    Names(perigee_meta::Plant),
    /// Of the lock service.
    Locks(perigee_meta::lock::plant::Plant),
    /// Of striped files.
    Stripes(perigee_meta::stripe::plant::Plant),
    /// Of hosts that write behind.
    Behind(perigee_replica::chunk::behind_plant::Plant),
}

impl Fault {
    /// Every one.
    pub fn all() -> Vec<Self> {
        let chain = perigee_replica::Plant::ALL.iter().copied().map(Self::Chain);
        let names = perigee_meta::Plant::ALL.iter().copied().map(Self::Names);
        let locks = perigee_meta::lock::plant::Plant::ALL;
        let locks = locks.iter().copied().map(Self::Locks);
        let stripes = perigee_meta::stripe::plant::Plant::ALL;
        let stripes = stripes.iter().copied().map(Self::Stripes);
        let behind = perigee_replica::chunk::behind_plant::Plant::ALL;
        let behind = behind.iter().copied().map(Self::Behind);
        let all = chain.chain(names).chain(locks).chain(stripes);
        all.chain(behind).collect()
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chain(plant) => plant.name(),
            Self::Names(plant) => plant.name(),
            Self::Locks(plant) => plant.name(),
            Self::Stripes(plant) => plant.name(),
            Self::Behind(plant) => plant.name(),
        }
    }

    /// What is wrong.
    pub fn text(self) -> &'static str {
        match self {
            Self::Chain(plant) => plant.text(),
            Self::Names(plant) => plant.text(),
            Self::Locks(plant) => plant.text(),
            Self::Stripes(plant) => plant.text(),
            Self::Behind(plant) => plant.text(),
        }
    }
}
