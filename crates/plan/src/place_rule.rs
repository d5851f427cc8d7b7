//! Rules written by hand: `--place 'symbol:cvar=block-cyclic:20M'`.

use std::fmt;

use nearpage_machine::NodeId;

use crate::size::{bytes_of, print_size};
use crate::{CallSiteFrame, Error, Placement, Subject};

/// Placements of unmatched memory, for messages.
pub(crate) const UNMATCHED_PLACEMENTS: &str =
    "unmatched memory can be `interleave`, over nodes without weights, `node:1` or `first-touch`";

/// `WHAT=WHERE`: what to place, and where.
///
/// `WHAT` is `symbol:NAME` or `symbol:NAME@MODULE` (a static object), `function:NAME`, `function:NAME:LINE` or
/// `function:NAME@MODULE` (heap objects that this function allocates), `heap` or `mapping` with bounds (`heap>=1M`,
/// `heap>=64K<1M`), or `unmatched` (memory that no other rule places; `rest` in version 0.1). `WHERE` is a
/// [`Placement`].
#[derive(Clone, Debug, PartialEq)]
pub struct PlaceRule {
    /// What to place.
    pub subject: Subject,
    /// Where its pages go.
    pub placement: Placement,
}

impl PlaceRule {
    /// Reads a rule. Node lists take numactl's forms among the nodes `known`; if no nodes are known, plain lists only.
    ///
    /// # Errors
    /// [`Error::Rule`] names the rule, what was expected, and an example.
    pub fn parse(text: &str, known: &[NodeId]) -> Result<Self, Error> {
        let (kind, rest) = split_kind(text);
        let example = match kind {
            "symbol" => "'symbol:cvar=block-cyclic:20M'",
            "function" => "'function:main:120=block'",
            "mapping" => "'mapping>=1G=interleave:0=3,1=1'",
            "unmatched" | "rest" => "'unmatched=interleave'",
            _ => "'heap>=1M=interleave'",
        };
        let fault = |message: String| Error::Rule {
            rule: text.to_owned(),
            message,
            example,
        };
        let (subject, placement) = match kind {
            "symbol" | "function" => {
                let (name, placement) = split_name(rest)
                    .ok_or_else(|| fault("expected `=` and a placement".to_owned()))?;
                let subject = if kind == "symbol" {
                    symbol(name)
                } else {
                    function(name)
                };
                (subject, placement)
            }
            "heap" | "mapping" => {
                let (bounds, placement) = split_bounds(rest)
                    .ok_or_else(|| fault("expected `=` and a placement".to_owned()))?;
                (bounded(kind, bounds), placement)
            }
            "unmatched" | "rest" => match rest.strip_prefix('=') {
                Some(placement) => (Ok(Subject::Unmatched), placement),
                None => return Err(fault("expected `=` and a placement".to_owned())),
            },
            _ => {
                return Err(fault(format!(
                    "`{kind}` is not something to place; expected `symbol:NAME`, \
                     `function:NAME`, `heap>=SIZE`, `mapping>=SIZE` or `unmatched`"
                )));
            }
        };
        let subject = subject.map_err(fault)?;
        let placement = Placement::among(placement, known).map_err(fault)?;
        if matches!(placement, Placement::Runs(_)) {
            return Err(fault(
                "`runs` can only stand in a plan file, with the runs".to_owned(),
            ));
        }
        if subject == Subject::Unmatched && !placement.fits_unmatched() {
            return Err(fault(UNMATCHED_PLACEMENTS.to_owned()));
        }
        Ok(Self { subject, placement })
    }
}

/// Prints the rule as it would be typed.
impl fmt::Display for PlaceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |module: &str| {
            if module.is_empty() {
                String::new()
            } else {
                format!("@{module}")
            }
        };
        match &self.subject {
            Subject::Symbol { symbol, module, .. } => write!(f, "symbol:{symbol}{}", at(module))?,
            Subject::CallSite { frames, .. } => {
                let frame = frames.first();
                let function = frame.map_or("", |frame| &frame.function);
                let module = frame.map_or(String::new(), |frame| at(&frame.module));
                write!(f, "function:{function}{module}")?;
                if let Some(line) = frame.map(|frame| frame.line).filter(|&line| line > 0) {
                    write!(f, ":{line}")?;
                }
            }
            Subject::Code { module, .. } => write!(f, "code:{module}")?,
            Subject::BrkHeap { .. } => f.write_str("brk-heap")?,
            Subject::Unmatched => f.write_str("unmatched")?,
            Subject::Heap {
                size_min_bytes,
                size_max_bytes,
            } => {
                write!(f, "heap{}", print_bounds(*size_min_bytes, *size_max_bytes))?;
            }
            Subject::Mapping {
                size_min_bytes,
                size_max_bytes,
            } => {
                write!(
                    f,
                    "mapping{}",
                    print_bounds(*size_min_bytes, *size_max_bytes)
                )?;
            }
        }
        write!(f, "={}", self.placement)
    }
}

fn split_kind(text: &str) -> (&str, &str) {
    let end = text.find([':', '>', '<', '=']).unwrap_or(text.len());
    let (kind, rest) = text.split_at(end);
    (
        kind,
        if matches!(kind, "symbol" | "function") {
            rest.strip_prefix(':').unwrap_or(rest)
        } else {
            rest
        },
    )
}

/// Splits at the first `=` with a placement behind it, so that `operator==` can be named. Without a placement, splits
/// at the first `=`, so that the message is about the text behind it.
fn split_name(rest: &str) -> Option<(&str, &str)> {
    let cuts = || {
        rest.match_indices('=')
            .map(|(at, _)| (&rest[..at], &rest[at + 1..]))
    };
    cuts()
        .find(|(_, placement)| Placement::begins(placement))
        .or_else(|| cuts().next())
}

/// Splits at the first `=` that is no part of `>=` or `<=`.
fn split_bounds(rest: &str) -> Option<(&str, &str)> {
    let at = rest
        .match_indices('=')
        .map(|(at, _)| at)
        .find(|&at| at == 0 || !matches!(rest.as_bytes()[at - 1], b'>' | b'<'))?;
    Some((&rest[..at], &rest[at + 1..]))
}

fn symbol(name: &str) -> Result<Subject, String> {
    let (symbol, module) = split_module(name)?;
    Ok(Subject::Symbol {
        symbol,
        module,
        build_id: String::new(),
        offset: 0,
        size_bytes: 0,
    })
}

fn function(name: &str) -> Result<Subject, String> {
    let (name, line) = match name.rsplit_once(':') {
        Some((name, line))
            if !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            (
                name,
                line.parse()
                    .map_err(|_| format!("`{line}` is not a line number"))?,
            )
        }
        _ => (name, 0),
    };
    let (function, module) = split_module(name)?;
    let frame = CallSiteFrame {
        module,
        build_id: String::new(),
        offset: 0,
        function,
        line,
    };
    Ok(Subject::CallSite {
        frames: vec![frame],
        size_bytes: 0,
        order: None,
        thread: None,
    })
}

fn split_module(name: &str) -> Result<(String, String), String> {
    let (name, module) = match name.rsplit_once('@') {
        Some((_, "")) => return Err("expected a module's file name after `@`".to_owned()),
        Some((name, module)) => (name, module),
        None => (name, ""),
    };
    match name {
        "" => Err("expected a name after `:`".to_owned()),
        _ => Ok((name.to_owned(), module.to_owned())),
    }
}

fn bounded(kind: &str, bounds: &str) -> Result<Subject, String> {
    let (size_min_bytes, size_max_bytes) = parse_bounds(bounds)?;
    Ok(match kind {
        "heap" => Subject::Heap {
            size_min_bytes,
            size_max_bytes,
        },
        _ => Subject::Mapping {
            size_min_bytes,
            size_max_bytes,
        },
    })
}

/// Reads `>=1M`, `<64K`, `>=64K<1M`, or nothing, as least and greatest size (inclusive).
pub(crate) fn parse_bounds(text: &str) -> Result<(u64, u64), String> {
    let (mut least, mut greatest) = (0, u64::MAX);
    let mut rest = text;
    while !rest.is_empty() {
        let (operator, size) = [">=", "<=", ">", "<"]
            .into_iter()
            .find_map(|operator| Some((operator, rest.strip_prefix(operator)?)))
            .ok_or_else(|| {
                format!("`{text}`: expected bounds as in `>=1M`, `<64K` or `>=64K<1M`")
            })?;
        let end = size.find(['<', '>']).unwrap_or(size.len());
        let (size, next) = size.split_at(end);
        let size = bytes_of(size.trim())?;
        let empty = || format!("`{text}` leaves no size");
        match operator {
            ">=" => least = least.max(size),
            ">" => least = least.max(size.checked_add(1).ok_or_else(empty)?),
            "<=" => greatest = greatest.min(size),
            _ => greatest = greatest.min(size.checked_sub(1).ok_or_else(empty)?),
        }
        rest = next;
    }
    if least > greatest {
        return Err(format!("`{text}` leaves no size"));
    }
    Ok((least, greatest))
}

/// Prints bounds as [`parse_bounds`] reads them; empty if nothing is bounded.
pub(crate) fn print_bounds(least: u64, greatest: u64) -> String {
    let mut text = String::new();
    if least > 0 {
        text += &format!(">={}", print_size(least));
    }
    match greatest.checked_add(1) {
        None => {}
        Some(beyond) if beyond.is_multiple_of(1024) => text += &format!("<{}", print_size(beyond)),
        Some(_) => text += &format!("<={}", print_size(greatest)),
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rules_are_read_back_as_typed() {
        for text in [
            "symbol:cvar=block-cyclic:20M",
            "symbol:cvar=block:0-48M/64M",
            "heap>=1M=tiles:2x4/384K@worker",
            "symbol:cvar@libapp.so.1=interleave",
            "symbol:operator===node:1",
            "function:main=block",
            "function:main:120=block@worker",
            "function:ns::grow@libapp.so:7=thread:2",
            "heap>=1M=interleave",
            "heap<64K=node:0",
            "heap>=64K<1M=first-touch",
            "heap>=64K<=1000000=first-touch",
            "heap=interleave",
            "mapping>=1G=interleave:0=3,1=1",
            "unmatched=interleave",
            "unmatched=interleave:0,2-3",
            "unmatched=node:1",
        ] {
            let rule = PlaceRule::parse(text, &[]).expect(text);
            assert_eq!(rule.to_string(), text);
        }
    }

    #[test]
    fn unmatched_memory_was_called_rest() {
        let parse = |text| PlaceRule::parse(text, &[]).expect(text);
        assert_eq!(parse("rest=node:1"), parse("unmatched=node:1"));
    }

    #[test]
    fn bounds_are_inclusive() {
        assert_eq!(parse_bounds(">=1M"), Ok((1 << 20, u64::MAX)));
        assert_eq!(parse_bounds(">1M"), Ok(((1 << 20) + 1, u64::MAX)));
        assert_eq!(parse_bounds("<64K"), Ok((0, 65535)));
        assert_eq!(parse_bounds("<=64K"), Ok((0, 65536)));
        assert_eq!(parse_bounds(""), Ok((0, u64::MAX)));
    }

    #[test]
    fn a_fault_names_rule_expectation_and_example() {
        let message = |text| PlaceRule::parse(text, &[]).expect_err(text).to_string();
        assert_eq!(
            message("symbol:cvar=blok"),
            "--place 'symbol:cvar=blok': `blok` is not a placement; expected `block`, \
             `block:0-48M/64M`, `block-cyclic:20M`, `tiles:2x4/384K`, `round-robin`, `object-blocks:2000`, `interleave`, `interleave:0,2-3`, `interleave:0=3,1=1`, `node:1`, `near:gpu0`, \
             `thread:2` or `first-touch`; a rule is WHAT=WHERE, for example \
             'symbol:cvar=block-cyclic:20M'"
        );
        for (text, part) in [
            ("", "not something to place"),
            ("stack=node:1", "`stack` is not something"),
            ("symbol:cvar", "expected `=`"),
            ("symbol:=block", "expected a name"),
            ("symbol:a@=block", "file name after `@`"),
            ("heap>=1M", "expected `=`"),
            ("heap>=x=interleave", "not a size"),
            ("heap<0=interleave", "leaves no size"),
            ("heap>=2M<1M=interleave", "leaves no size"),
            ("heap>=1M=runs", "plan file"),
            ("heap:1M=interleave", "expected bounds"),
            ("heap>=1M=node:é", "expected a list of node numbers"),
            ("heapé=block", "not something to place"),
            ("heap>é=block", "not a size"),
            ("rest", "expected `=`"),
            ("rest>=1M=interleave", "expected `=`"),
            ("rest=block", "unmatched memory can be"),
            ("rest=interleave:0=3,1=1", "without weights"),
            ("unmatched=thread:1", "unmatched memory can be"),
        ] {
            assert!(message(text).contains(part), "{text}: {}", message(text));
            assert!(PlaceRule::parse(text, &[]).expect_err(text).is_usage());
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "(symbol|function|heap|mapping|rest)?[:=<>@a-zé0-9KM.,+!-]{0,40}") {
            if let Ok(rule) = PlaceRule::parse(&text, &[]) {
                prop_assert_eq!(PlaceRule::parse(&rule.to_string(), &[]).expect("again"), rule);
            }
        }

        #[test]
        fn bounds_survive_printing(least: u64, more: u64) {
            let bounds = (least, least.saturating_add(more));
            prop_assert_eq!(parse_bounds(&print_bounds(bounds.0, bounds.1)), Ok(bounds));
        }
    }
}
