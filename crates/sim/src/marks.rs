//! Counts of what was met: a fault that is never met tests nothing.

/// Declares `Mark`, something worth seeing, and `Marks`, how often each happened.
macro_rules! marks {
    ($($name:ident = $text:literal;)*) => {
        /// Something worth seeing.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mark {
            $(#[doc = $text] $name,)*
        }

        impl Mark {
            /// Every one, with its text.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$name, $text),)*];
        }

        /// How often something worth seeing happened: a fault that is never met tests nothing.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Marks(pub [u64; Mark::ALL.len()]);

        impl Default for Marks {
            fn default() -> Self {
                Self([0; Mark::ALL.len()])
            }
        }

        impl Marks {
            /// Counts one.
            pub fn hit(&mut self, mark: Mark) {
                self.0[mark as usize] += 1;
            }

            /// What each is, and how often it happened.
            #[must_use]
            pub fn told(&self) -> Vec<(&'static str, u64)> {
                let all = Mark::ALL.iter();
                all.map(|(mark, text)| (*text, self.0[*mark as usize]))
                    .collect()
            }

            /// Adds another run's.
            pub fn add(&mut self, other: &Self) {
                for (mine, theirs) in self.0.iter_mut().zip(other.0) {
                    *mine += theirs;
                }
            }
        }
    };
}
pub(crate) use marks;
