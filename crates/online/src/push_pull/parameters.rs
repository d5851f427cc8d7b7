//! Names and parameters of the five ARS policies.

use crate::{Parameter, ParameterError};

/// Variant of ARS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Monitor {
    /// Push, by the page's own counts.
    OutU,
    /// Push, by weighted counts.
    OutW,
    /// Pull, by weighted counts.
    InW,
    /// [`Monitor::OutU`] against the local count.
    OutULocal,
    /// [`Monitor::OutW`] against the local count.
    OutWLocal,
}

impl Monitor {
    /// All variants, in the paper's order.
    pub const ALL: [Self; 5] = [
        Self::OutU,
        Self::OutW,
        Self::InW,
        Self::OutULocal,
        Self::OutWLocal,
    ];

    /// Name of the policy.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OutU => "out-u",
            Self::OutW => "out-w",
            Self::InW => "in-w",
            Self::OutULocal => "out-u-local",
            Self::OutWLocal => "out-w-local",
        }
    }

    /// Factor from which on the formula moves no page that has no neighbours. A node has at most all accesses of a
    /// page, which are the mean times the number of nodes.
    fn bound(self, nodes: usize) -> f64 {
        match self {
            Self::OutU | Self::OutW => nodes as f64 - 1.0,
            Self::OutULocal | Self::OutWLocal | Self::InW => nodes as f64,
        }
    }

    pub(super) fn sees_local(self) -> bool {
        matches!(self, Self::OutULocal | Self::OutWLocal)
    }
}

/// Ratio of the published factor to the bound on the paper's four nodes: 2 of 3.
pub(super) const PUBLISHED_SHARE: f64 = 2.0 / 3.0;

/// Parameters of the ARS policies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PushPullParameters {
    /// The threshold, as a multiple of the page's mean count.
    pub factor: f64,
    /// Time between checks.
    pub check_ns: u64,
    /// The factor adapts to changes of the access pattern: see [`super::PushPull`].
    pub adaptive: bool,
    /// Counts restart at each check. Otherwise they continue for as long as the page exists, as a histogram (§3).
    pub afresh: bool,
}

impl Default for PushPullParameters {
    fn default() -> Self {
        let [factor, check, adaptive, afresh] = Self::PARAMETERS.map(|parameter| parameter.default);
        Self {
            factor: factor as f64,
            check_ns: check,
            adaptive: adaptive != 0,
            afresh: afresh != 0,
        }
    }
}

impl PushPullParameters {
    /// Names, defaults and ranges, in the order of the fields. The factor need not be whole.
    pub const PARAMETERS: [Parameter; 4] = [
        // "A factor of 2 is chosen" (§5.3). More than 63 cannot matter on 64 nodes.
        Parameter {
            name: "factor",
            default: 2,
            least: 0,
            most: 63,
            meaning: "how far a node must stand out, in the page's mean count; need not be whole",
        },
        // "Periodically" (§4.1). A phase of programs of the paper's sizes takes some ten milliseconds.
        Parameter {
            name: "check_ns",
            default: 1_000_000,
            least: 1,
            most: 1_000_000_000_000,
            meaning: "time between checks",
        },
        Parameter {
            name: "adaptive",
            default: 0,
            least: 0,
            most: 1,
            meaning: "1: the factor follows how the access pattern changes",
        },
        // "Memory access histograms" (§3): the paper does not say for how long they continue.
        Parameter {
            name: "afresh",
            default: 1,
            least: 0,
            most: 1,
            meaning: "0: counts go on from check to check and through a move",
        },
    ];

    /// The parameters with the default factor for a number of nodes: the published factor if that can move a page.
    pub fn on(self, monitor: Monitor, nodes: usize) -> Self {
        let bound = monitor.bound(nodes);
        let published = Self::default().factor;
        match self.factor == published && published >= bound {
            true => Self {
                factor: bound * PUBLISHED_SHARE,
                ..self
            },
            false => self,
        }
    }

    /// Sets a parameter by name; `false`: there is no parameter of that name.
    ///
    /// # Errors
    /// A value outside its range.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ParameterError> {
        let [factor, check, adaptive, afresh] = &Self::PARAMETERS;
        match name {
            _ if name == factor.name => {
                let (least, most) = (factor.least, factor.most);
                self.factor = value
                    .parse()
                    .ok()
                    .filter(|factor| (least as f64..=most as f64).contains(factor))
                    .ok_or_else(|| {
                        ParameterError(format!(
                            "{name}={value}: expected a number from {least} to {most}"
                        ))
                    })?;
            }
            _ if name == check.name => self.check_ns = check.read(value)?,
            _ if name == adaptive.name => self.adaptive = adaptive.read(value)? != 0,
            _ if name == afresh.name => self.afresh = afresh.read(value)? != 0,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Names and values.
    pub fn values(&self) -> [(&'static str, String); 4] {
        let [factor, check, adaptive, afresh] = &Self::PARAMETERS;
        [
            (factor.name, self.factor.to_string()),
            (check.name, self.check_ns.to_string()),
            (adaptive.name, u64::from(self.adaptive).to_string()),
            (afresh.name, u64::from(self.afresh).to_string()),
        ]
    }
}
