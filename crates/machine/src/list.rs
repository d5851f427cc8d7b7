//! Lists of nodes and CPUs in the kernel's format (`0,2-3`) and in numactl's (`all`, `!1`, `+0-1`).

use std::fmt;
use std::str::FromStr;

use crate::{CpuId, NodeId};

/// Element of a list: [`NodeId`] or [`CpuId`].
pub trait Number: Copy + Ord + fmt::Display {
    /// Name in messages: `node`, `CPU`.
    const NOUN: &'static str;
    /// Greatest accepted number; keeps a damaged `0-4294967295` from filling the memory.
    const MAX: u32;
    /// The number itself.
    fn number(self) -> u32;
    /// The element with a number that is at most [`Number::MAX`].
    fn from_number(number: u32) -> Self;
}

impl Number for NodeId {
    const NOUN: &'static str = "node";
    const MAX: u32 = u16::MAX as u32;
    fn number(self) -> u32 {
        u32::from(self.0)
    }
    fn from_number(number: u32) -> Self {
        Self(u16::try_from(number).unwrap_or(u16::MAX))
    }
}

impl Number for CpuId {
    const NOUN: &'static str = "CPU";
    const MAX: u32 = u16::MAX as u32;
    fn number(self) -> u32 {
        self.0
    }
    fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// Distinct nodes or CPUs in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(Vec<T>);

/// The empty list.
impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Nodes, as in `0,2-3`.
pub type NodeList = List<NodeId>;
/// CPUs, as in `0-5,24-29`.
pub type CpuList = List<CpuId>;

/// Error in the text of a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ListError {
    #[error("`{text}`: expected a list of {noun} numbers such as `0,2-3`, found `{found}`")]
    NotANumber {
        noun: &'static str,
        text: String,
        found: String,
    },
    #[error("`{text}`: the range `{found}` runs backwards; write the smaller {noun} first")]
    Backwards {
        noun: &'static str,
        text: String,
        found: String,
    },
    #[error("`{text}`: {noun} {found} is beyond {max}, the greatest number there can be")]
    TooGreat {
        noun: &'static str,
        text: String,
        found: String,
        max: u32,
    },
    #[error("`{text}`: there is no {noun} {found} here; there is {known}")]
    Unknown {
        noun: &'static str,
        text: String,
        found: u32,
        known: String,
    },
    #[error("`{text}` names no {noun}")]
    Empty { noun: &'static str, text: String },
}

impl<T: Number> List<T> {
    /// The members, ascending.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }

    /// Is the number in the list?
    pub fn contains(&self, member: T) -> bool {
        self.0.binary_search(&member).is_ok()
    }

    /// Reads a list of `known` members in numactl's syntax (numactl(8)): numbers and ranges, or `all`. A `!` before a
    /// list selects all members that are not listed. A `+` means that the list has positions among `known`.
    ///
    /// # Errors
    /// The text is malformed, a number is not `known`, or the list is empty.
    pub fn parse_among(text: &str, known: &[T]) -> Result<Self, ListError> {
        let known: Self = known.iter().copied().collect();
        let selected = if text == "all" {
            known
        } else if let Some(rest) = text.strip_prefix('!') {
            let excluded = rest.parse::<Self>()?;
            excluded.check_among(text, &known)?;
            known
                .0
                .into_iter()
                .filter(|&member| !excluded.contains(member))
                .collect()
        } else if let Some(rest) = text.strip_prefix('+') {
            let positions = rest.parse::<Self>()?;
            let at = |position: &T| known.0.get(position.number() as usize).copied();
            if let Some(missing) = positions.0.iter().find(|position| at(position).is_none()) {
                return Err(unknown(text, *missing, &known));
            }
            positions.0.iter().filter_map(at).collect()
        } else {
            let list = text.parse::<Self>()?;
            list.check_among(text, &known)?;
            list
        };
        if selected.0.is_empty() {
            return Err(ListError::Empty {
                noun: T::NOUN,
                text: text.to_owned(),
            });
        }
        Ok(selected)
    }

    fn check_among(&self, text: &str, known: &Self) -> Result<(), ListError> {
        match self.0.iter().find(|member| !known.contains(**member)) {
            Some(missing) => Err(unknown(text, *missing, known)),
            None => Ok(()),
        }
    }
}

fn unknown<T: Number>(text: &str, missing: T, known: &List<T>) -> ListError {
    ListError::Unknown {
        noun: T::NOUN,
        text: text.to_owned(),
        found: missing.number(),
        known: if known.0.is_empty() {
            "none".to_owned()
        } else {
            known.to_string()
        },
    }
}

impl<T: Number> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(members: I) -> Self {
        let mut members: Vec<T> = members.into_iter().collect();
        members.sort_unstable();
        members.dedup();
        Self(members)
    }
}

/// Parses the kernel's format: numbers and ranges, separated by commas; empty text is the empty list.
impl<T: Number> FromStr for List<T> {
    type Err = ListError;

    fn from_str(text: &str) -> Result<Self, ListError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let number = |digits: &str| -> Result<u32, ListError> {
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(ListError::NotANumber {
                    noun: T::NOUN,
                    text: text.to_owned(),
                    found: digits.to_owned(),
                });
            }
            digits
                .parse()
                .ok()
                .filter(|&number| number <= T::MAX)
                .ok_or_else(|| ListError::TooGreat {
                    noun: T::NOUN,
                    text: text.to_owned(),
                    found: digits.to_owned(),
                    max: T::MAX,
                })
        };
        let mut ranges = Vec::new();
        for piece in text.split(',').map(str::trim) {
            let (first, last) = match piece.split_once('-') {
                Some((first, last)) => (number(first.trim())?, number(last.trim())?),
                None => (number(piece)?, number(piece)?),
            };
            if first > last {
                return Err(ListError::Backwards {
                    noun: T::NOUN,
                    text: text.to_owned(),
                    found: piece.to_owned(),
                });
            }
            ranges.push((first, last));
        }
        // Ranges are merged before they are expanded, so that repeated ranges cannot make the result larger.
        ranges.sort_unstable();
        let mut members = Vec::new();
        let mut next = 0;
        for (first, last) in ranges {
            members.extend((first.max(next)..=last).map(T::from_number));
            next = next.max(last + 1);
        }
        Ok(Self(members))
    }
}

/// Writes the kernel's format.
impl<T: Number> fmt::Display for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|a, b| a.number() + 1 == b.number());
        for (position, run) in runs.enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            match run {
                [one] => write!(f, "{one}")?,
                [first, .., last] => write!(f, "{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nodes(text: &str) -> Result<String, String> {
        let known = [0, 1, 2, 5].map(NodeId);
        NodeList::parse_among(text, &known)
            .map(|list| list.to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn reads_what_numactl_reads() {
        assert_eq!(nodes("all"), Ok("0-2,5".into()));
        assert_eq!(nodes("0,2"), Ok("0,2".into()));
        assert_eq!(nodes("5,0-1,1"), Ok("0-1,5".into()));
        assert_eq!(nodes("!0-1"), Ok("2,5".into()));
        assert_eq!(nodes("+2-3"), Ok("2,5".into()));
    }

    #[test]
    fn says_what_is_wrong() {
        assert_eq!(
            nodes("3"),
            Err("`3`: there is no node 3 here; there is 0-2,5".into())
        );
        assert_eq!(
            nodes("+4"),
            Err("`+4`: there is no node 4 here; there is 0-2,5".into())
        );
        assert_eq!(
            nodes("0,x"),
            Err("`0,x`: expected a list of node numbers such as `0,2-3`, found `x`".into())
        );
        assert_eq!(
            nodes("2-0"),
            Err("`2-0`: the range `2-0` runs backwards; write the smaller node first".into())
        );
        assert_eq!(nodes("!0-2,5"), Err("`!0-2,5` names no node".into()));
        assert_eq!(nodes(""), Err("`` names no node".into()));
        assert!(nodes("0-99999999999").unwrap_err().contains("beyond 65535"));
    }

    proptest! {
        #[test]
        fn never_panics(text in "[0-9,!+ al-]{0,40}") {
            let _ = NodeList::parse_among(&text, &[NodeId(0), NodeId(3)]);
            let _ = text.parse::<CpuList>();
        }

        #[test]
        fn survives_printing(numbers in prop::collection::vec(0u32..200, 0..50)) {
            let list: CpuList = numbers.into_iter().map(CpuId).collect();
            prop_assert_eq!(list.to_string().parse::<CpuList>(), Ok(list));
        }
    }
}
