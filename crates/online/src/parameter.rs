//! Parameters of policies, by name.

/// A parameter of a policy: `--set NAME=VALUE`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Name.
    pub name: &'static str,
    /// Published default.
    pub default: u64,
    /// Minimum.
    pub least: u64,
    /// Maximum.
    pub most: u64,
    /// Meaning, for help texts.
    pub meaning: &'static str,
}

/// Error in the value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterError(pub String);

impl std::fmt::Display for ParameterError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParameterError {}

impl Parameter {
    /// A parameter with its default and range.
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

    /// Parses a value.
    ///
    /// # Errors
    /// The text is not a whole number, or is outside the range.
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

/// Defines a struct of whole numbers that can be set by name; each line has a field, default, range and meaning.
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
