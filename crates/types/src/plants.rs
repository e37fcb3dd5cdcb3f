//! Names for deliberate faults.

/// Declares `Plant`: the deliberate faults of one room, each with a name and what is wrong. The worth of the simulator
/// is the share of them that it finds.
#[macro_export]
macro_rules! plants {
    ($($name:ident = $text:literal;)*) => {
        /// One deliberate fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Plant {
            $(#[doc = $text] $name,)*
        }

        impl Plant {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// What is wrong.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The fault of that name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|p| p.name() == name)
            }
        }
    };
}
