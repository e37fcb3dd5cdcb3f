//! What an open file may be to the kernel while others of the same inode are open.
//!
//! The kernel keeps one I/O mode per inode and answers EIO to an open that does not fit, so the
//! choice is made here, from the opens that live. Its rules (`fs/fuse/iomode.c`, Linux 6.9 to 6.18):
//! opens with a backing file exclude cached ones, and every open beside them needs the same backing
//! file; a direct open goes with everything else, but its first map turns it into a cached one, and
//! nobody tells the daemon of maps. So a direct open counts as one that may be cached.
//!
//! The kernel drops an open before it sends the `RELEASE`, so what is counted here is never less
//! than what the kernel counts.

/// What an open file is to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Through the daemon, with page cache.
    Cached,
    /// Through the daemon, without page cache.
    Direct,
    /// The same, of an open that cannot be read, and so not be mapped.
    WriteOnly,
    /// Past the daemon, to the backing file.
    Passthrough,
    /// Reads and writes through the daemon, maps to the backing file.
    Beside,
}

impl Mode {
    /// Whether it needs a backing file.
    #[must_use]
    pub const fn is_backed(self) -> bool {
        matches!(self, Self::Passthrough | Self::Beside)
    }
}

/// What the file system would like an open file to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wish {
    /// Through the daemon, with page cache.
    Cached,
    /// Through the daemon, by a program that can only write: a page cache would be of no use to it.
    WriteOnly,
    /// Through the daemon, which must see each call as the program makes it.
    Direct,
    /// Past the daemon, to the backing file.
    Passthrough,
    /// Reads and writes through the daemon, maps to the backing file.
    Beside,
}

/// The live opens of one inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Counts {
    cached: u32,
    direct: u32,
    write_only: u32,
    backed: u32,
}

impl Counts {
    /// What an open becomes that the file system wishes to be `wish`.
    ///
    /// Beside backed opens everything is backed; without any, a backed open waits until the last
    /// other one is closed, and goes through the daemon meanwhile: one that would have passed it by
    /// is cached if the inode is cached already. A cached open does not begin beside a direct one:
    /// pages that it reads while that one writes could be old, and would stay.
    #[must_use]
    pub const fn plan(&self, wish: Wish) -> Mode {
        match wish {
            Wish::Cached | Wish::WriteOnly | Wish::Direct if self.backed > 0 => Mode::Beside,
            Wish::Passthrough if self.backed > 0 => Mode::Passthrough,
            Wish::Beside if self.backed > 0 => Mode::Beside,
            Wish::Cached | Wish::WriteOnly | Wish::Passthrough if self.cached > 0 => Mode::Cached,
            Wish::Passthrough if self.direct > 0 => Mode::Direct,
            Wish::Cached if self.direct > 0 || self.write_only > 0 => Mode::Direct,
            Wish::Cached => Mode::Cached,
            Wish::Passthrough => Mode::Passthrough,
            Wish::Beside if self.cached > 0 || self.direct > 0 => Mode::Direct,
            Wish::Beside => Mode::Beside,
            Wish::WriteOnly => Mode::WriteOnly,
            Wish::Direct => Mode::Direct,
        }
    }

    /// What an open becomes when its backing file cannot be registered and no backed open lives.
    #[must_use]
    pub const fn without_backing(wish: Wish) -> Mode {
        match wish {
            Wish::Cached | Wish::Passthrough => Mode::Cached,
            Wish::WriteOnly => Mode::WriteOnly,
            Wish::Direct | Wish::Beside => Mode::Direct,
        }
    }

    /// Counts an open.
    pub fn add(&mut self, mode: Mode) {
        *self.of(mode) += 1;
    }

    /// Counts a close of an open that was [added](Counts::add).
    pub fn remove(&mut self, mode: Mode) {
        let count = self.of(mode);
        debug_assert!(*count > 0, "closed more often than opened: {mode:?}");
        *count = count.saturating_sub(1);
    }

    /// Whether nothing is open.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.cached == 0 && self.direct == 0 && self.write_only == 0 && self.backed == 0
    }

    /// Whether the backing file is in use.
    #[must_use]
    pub const fn is_backed(&self) -> bool {
        self.backed > 0
    }

    fn of(&mut self, mode: Mode) -> &mut u32 {
        match mode {
            Mode::Cached => &mut self.cached,
            Mode::Direct => &mut self.direct,
            Mode::WriteOnly => &mut self.write_only,
            Mode::Passthrough | Mode::Beside => &mut self.backed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const WISHES: [Wish; 5] = [
        Wish::Cached,
        Wish::WriteOnly,
        Wish::Direct,
        Wish::Passthrough,
        Wish::Beside,
    ];
    const MODES: [Mode; 5] = [
        Mode::Cached,
        Mode::Direct,
        Mode::WriteOnly,
        Mode::Passthrough,
        Mode::Beside,
    ];
    const OPENS_MAX: usize = 6;

    /// The kernel's account of one inode, after `fs/fuse/iomode.c`: opens, and whether each counts
    /// as caching (a direct one does from its first map on).
    #[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
    struct Inode {
        opens: Vec<(Mode, bool)>,
    }

    impl Inode {
        fn caching(&self) -> usize {
            self.opens
                .iter()
                .filter(|(mode, mapped)| *mode == Mode::Cached || *mapped)
                .count()
        }

        fn backed(&self) -> bool {
            self.opens.iter().any(|(mode, _)| mode.is_backed())
        }

        /// `fuse_file_io_open`.
        fn open(&mut self, mode: Mode) -> Result<(), &'static str> {
            match mode {
                Mode::Passthrough | Mode::Beside if self.caching() > 0 => {
                    return Err("EIO: cached");
                }
                Mode::Cached | Mode::Direct | Mode::WriteOnly if self.backed() => {
                    return Err("EIO: backed");
                }
                Mode::Cached
                | Mode::Direct
                | Mode::WriteOnly
                | Mode::Passthrough
                | Mode::Beside => {}
            }
            self.opens.push((mode, false));
            Ok(())
        }

        /// `fuse_file_mmap`.
        fn map(&mut self, open: usize) -> Result<(), &'static str> {
            if self.opens[open].0 != Mode::Direct {
                return Ok(());
            }
            if self.backed() {
                return Err("ENODEV: backed");
            }
            self.opens[open].1 = true;
            Ok(())
        }

        fn counts(&self) -> Counts {
            let mut counts = Counts::default();
            self.opens.iter().for_each(|(mode, _)| counts.add(*mode));
            counts
        }
    }

    #[test]
    fn no_sequence_of_opens_maps_and_closes_makes_the_kernel_refuse() {
        let mut seen = BTreeSet::new();
        let mut waiting = vec![Inode::default()];
        while let Some(state) = waiting.pop() {
            let mut next = Vec::new();
            for wish in WISHES {
                if state.opens.len() == OPENS_MAX {
                    break;
                }
                let mode = state.counts().plan(wish);
                let mut after = state.clone();
                assert_eq!(
                    after.open(mode),
                    Ok(()),
                    "{wish:?} became {mode:?} at {state:?}"
                );
                next.push(after);
            }
            for open in 0..state.opens.len() {
                let mut mapped = state.clone();
                assert_eq!(mapped.map(open), Ok(()), "map of {open} at {state:?}");
                next.push(mapped);
                let mut closed = state.clone();
                closed.opens.remove(open);
                next.push(closed);
            }
            for mut after in next {
                after.opens.sort_unstable();
                if seen.insert(after.clone()) {
                    waiting.push(after);
                }
            }
        }
        assert!(seen.len() > 100, "explored {} states", seen.len());
    }

    #[test]
    fn alone_every_wish_is_granted() {
        for wish in WISHES {
            let granted = match wish {
                Wish::Cached => Mode::Cached,
                Wish::WriteOnly => Mode::WriteOnly,
                Wish::Direct => Mode::Direct,
                Wish::Passthrough => Mode::Passthrough,
                Wish::Beside => Mode::Beside,
            };
            assert_eq!(Counts::default().plan(wish), granted);
        }
    }

    #[test]
    fn writes_that_the_daemon_must_see_never_pass_it_by() {
        for first in MODES {
            for wish in [Wish::Cached, Wish::WriteOnly, Wish::Direct, Wish::Beside] {
                let mut counts = Counts::default();
                counts.add(first);
                assert_ne!(counts.plan(wish), Mode::Passthrough);
            }
        }
    }

    #[test]
    fn no_page_is_cached_while_a_direct_open_may_write_unless_it_was_there_first() {
        for writer in [Mode::Direct, Mode::WriteOnly] {
            let mut counts = Counts::default();
            counts.add(writer);
            assert_eq!(counts.plan(Wish::Cached), Mode::Direct);
        }
        let mut counts = Counts::default();
        counts.add(Mode::Direct);
        assert_eq!(counts.plan(Wish::Passthrough), Mode::Direct);
        counts.remove(Mode::Direct);
        counts.add(Mode::WriteOnly);
        assert_eq!(counts.plan(Wish::Passthrough), Mode::Passthrough);
        let mut counts = Counts::default();
        counts.add(Mode::Cached);
        assert_eq!(counts.plan(Wish::WriteOnly), Mode::Cached);
        assert_eq!(counts.plan(Wish::Direct), Mode::Direct);
    }

    #[test]
    fn closing_the_last_open_makes_room_for_any_mode() {
        for first in MODES {
            let mut counts = Counts::default();
            counts.add(first);
            counts.remove(first);
            assert!(counts.is_empty());
            assert_eq!(counts.plan(Wish::Passthrough), Mode::Passthrough);
        }
    }
}
