//! Parameters of policies, by name.

/// A parameter of a policy: `--set NAME=VALUE`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it is unless it is set, as published.
    pub default: u64,
    /// The least it may be.
    pub least: u64,
    /// The most it may be.
    pub most: u64,
    /// What it means.
    pub meaning: &'static str,
}

/// A parameter that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterError(pub String);

impl std::fmt::Display for ParameterError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParameterError {}

impl Parameter {
    /// Named, with its default and range.
    pub const fn new(
        name: &'static str,
        default: u64,
        range: std::ops::RangeInclusive<u64>,
        meaning: &'static str,
    ) -> Self {
        Self {
            name,
            default,
            least: *range.start(),
            most: *range.end(),
            meaning,
        }
    }

    /// Reads a value of it.
    ///
    /// # Errors
    /// What is no whole number, or outside the range.
    pub fn read(&self, text: &str) -> Result<u64, ParameterError> {
        text.parse()
            .ok()
            .filter(|value| (self.least..=self.most).contains(value))
            .ok_or_else(|| {
                let Self {
                    name, least, most, ..
                } = self;
                ParameterError(format!(
                    "{name}={text}: expected a whole number from {least} to {most}"
                ))
            })
    }
}

/// A struct of whole numbers that are set by name, from a table of them: each line is a field, its
/// default, its range and its meaning.
macro_rules! parameters {
    ($(#[$attribute:meta])* pub struct $name:ident { $($field:ident = $default:expr, $range:expr, $meaning:expr;)+ }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name {
            $(#[doc = $meaning] pub $field: u64,)+
        }

        impl $name {
            /// Names, defaults and ranges, in the order of the fields.
            pub const PARAMETERS: [$crate::Parameter; [$(stringify!($field)),+].len()] = [
                $($crate::Parameter::new(stringify!($field), $default, $range, $meaning),)+
            ];

            /// Sets a parameter by name; `false`: there is none of that name.
            ///
            /// # Errors
            /// A value outside its range.
            pub fn set(&mut self, name: &str, value: &str) -> Result<bool, $crate::ParameterError> {
                let fields = [$(&mut self.$field),+];
                for (field, parameter) in fields.into_iter().zip(&Self::PARAMETERS) {
                    if parameter.name == name {
                        *field = parameter.read(value)?;
                        return Ok(true);
                    }
                }
                Ok(false)
            }

            /// Names and values.
            pub fn values(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field)),+]
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default),+ }
            }
        }
    };
}

pub(crate) use parameters;
