//! The table of one object: how it is recognised, where its pages go and from when, and which keys go together.

use serde::Deserialize;
use toml::Spanned;

use super::parse::{Fault, fault};
use super::print::quote;
use crate::place_rule::{UNMATCHED_PLACEMENTS, parse_bounds};
use crate::{BuildId, CallSiteFrame, Decision, Effect, PageRun, Placement, Start, Subject};

const ONE_KEY: &str =
    "expected exactly one of `symbol`, `call_site`, `code`, `heap`, `mapping` and `unmatched`";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ObjectTable {
    #[serde(default)]
    name: String,
    symbol: Option<String>,
    #[serde(default)]
    module: String,
    #[serde(default)]
    build_id: BuildId,
    #[serde(default)]
    offset: u64,
    call_site: Option<Vec<CallSiteFrame>>,
    #[serde(default)]
    size: u64,
    order: Option<Spanned<[u32; 2]>>,
    thread: Option<u32>,
    code: Option<String>,
    #[serde(default)]
    pages: Vec<Spanned<String>>,
    #[serde(default)]
    brk_heap: bool,
    /// Called `rest` in version 0.1.
    #[serde(default, alias = "rest")]
    unmatched: bool,
    heap: Option<Spanned<String>>,
    mapping: Option<Spanned<String>>,
    placement: Spanned<String>,
    runs: Option<Vec<Spanned<String>>>,
    start: Option<Spanned<String>>,
    #[serde(default)]
    why: String,
    #[serde(default)]
    predicted: Effect,
}

impl ObjectTable {
    /// True if the decision can be part of a phase.
    pub(super) fn fits_phase(&self) -> bool {
        !self.unmatched && !self.brk_heap && self.code.is_none() && self.start.is_none()
    }

    /// The decision in the table, which begins at byte `at`.
    pub(super) fn decision(mut self, at: usize) -> Result<Decision, Fault> {
        let placement = self.placement()?;
        let start = self.start()?;
        let name = std::mem::take(&mut self.name);
        let why = std::mem::take(&mut self.why);
        let effect = self.predicted;
        let placement_at = self.placement.span().start;
        let subject = self.subject(at)?;
        if subject == Subject::Unmatched && !placement.fits_unmatched() {
            return fault(placement_at, UNMATCHED_PLACEMENTS);
        }
        Ok(Decision {
            name,
            subject,
            placement,
            start,
            why,
            effect,
        })
    }

    fn start(&self) -> Result<Start, Fault> {
        let Some(text) = &self.start else {
            return Ok(Start::default());
        };
        Start::from_name(text.get_ref()).ok_or_else(|| {
            let found = quote(text.get_ref());
            let message = format!(
                "`start` is {found}; it can be \"allocation\", \"second-thread\" or \"parallel\""
            );
            (text.span().start, message)
        })
    }

    fn placement(&self) -> Result<Placement, Fault> {
        let at = self.placement.span().start;
        let placement =
            Placement::among(self.placement.get_ref(), &[]).map_err(|message| (at, message))?;
        match (placement, &self.runs) {
            (Placement::Runs(_), None) => fault(
                at,
                "`placement = \"runs\"` needs `runs = [\"0+128 thread:0\"]`",
            ),
            (Placement::Runs(_), Some(texts)) => {
                let runs = parse_each(texts, PageRun::read)?;
                if !ascend(runs.iter().map(|run| (run.first_page, run.pages))) {
                    return fault(at, "`runs` overlap or are not in ascending order");
                }
                if runs.is_empty() {
                    return fault(at, "`runs` is empty");
                }
                Ok(Placement::Runs(runs))
            }
            (placement, None) => Ok(placement),
            (_, Some(_)) => fault(at, "`runs` goes with `placement = \"runs\"` only"),
        }
    }

    fn subject(self, at: usize) -> Result<Subject, Fault> {
        let kinds = [
            self.symbol.is_some(),
            self.call_site.is_some(),
            self.code.is_some(),
            self.heap.is_some(),
            self.mapping.is_some(),
        ];
        let kinds = kinds.into_iter().filter(|&is_it| is_it).count();
        let is_bare = !self.is_of_symbol() && !self.is_of_call_site();
        if self.unmatched {
            return match kinds == 0 && is_bare && self.size == 0 && !self.brk_heap {
                true => Ok(Subject::Unmatched),
                false => fault(
                    at,
                    "`unmatched` goes with no other key that recognises an object",
                ),
            };
        }
        if self.brk_heap {
            return match kinds == 0 && is_bare && self.size > 0 {
                true => Ok(Subject::BrkHeap {
                    size_bytes: self.size,
                }),
                false => fault(
                    at,
                    "`brk_heap` needs `size`, and goes with no other key that recognises an object",
                ),
            };
        }
        if let (None, Some(pages)) = (&self.code, self.pages.first()) {
            return fault(pages.span().start, "`pages` goes with `code` only");
        }
        if kinds != 1 {
            return fault(at, ONE_KEY);
        }
        if self.code.is_some() {
            return self.code(at);
        }
        if let Some(bounds) = self.heap.as_ref().or(self.mapping.as_ref()) {
            return self.of_size(at, bounds);
        }
        if self.symbol.is_none() {
            return self.call_site(at);
        }
        if self.is_of_call_site() {
            return fault(at, "`order` and `thread` go with `call_site` only");
        }
        Ok(Subject::Symbol {
            symbol: self.symbol.unwrap_or_default(),
            module: self.module,
            build_id: self.build_id,
            offset: self.offset,
            size_bytes: self.size,
        })
    }

    fn is_of_symbol(&self) -> bool {
        !self.module.is_empty() || !self.build_id.is_empty() || self.offset != 0
    }

    fn is_of_call_site(&self) -> bool {
        self.order.is_some() || self.thread.is_some()
    }

    fn of_size(&self, at: usize, bounds: &Spanned<String>) -> Result<Subject, Fault> {
        let (size_min_bytes, size_max_bytes) =
            parse_bounds(bounds.get_ref()).map_err(|message| (bounds.span().start, message))?;
        if self.is_of_symbol() || self.is_of_call_site() || self.size != 0 {
            return fault(
                at,
                "`heap` and `mapping` go with no other key that recognises an object",
            );
        }
        Ok(match self.heap {
            Some(_) => Subject::Heap {
                size_min_bytes,
                size_max_bytes,
            },
            None => Subject::Mapping {
                size_min_bytes,
                size_max_bytes,
            },
        })
    }

    fn call_site(self, at: usize) -> Result<Subject, Fault> {
        if self.is_of_symbol() {
            return fault(
                at,
                "`module`, `build_id` and `offset` go with `symbol`, or inside a frame",
            );
        }
        let frames = self.call_site.unwrap_or_default();
        if frames.is_empty() {
            return fault(at, "`call_site` has no frame");
        }
        let order = match self.order {
            Some(order) if order.get_ref()[0] > order.get_ref()[1] => {
                return fault(
                    order.span().start,
                    "`order` runs backwards; expected `[first, last]`",
                );
            }
            order => order.map(|order| order.into_inner().into()),
        };
        Ok(Subject::CallSite {
            frames,
            size_bytes: self.size,
            order,
            thread: self.thread,
        })
    }

    fn code(self, at: usize) -> Result<Subject, Fault> {
        let pages = parse_each(&self.pages, code_pages)?;
        if !ascend(pages.iter().copied()) {
            return fault(
                self.pages[0].span().start,
                "`pages` overlap or are not in ascending order",
            );
        }
        let is_of_others =
            !self.module.is_empty() || self.offset != 0 || self.size != 0 || self.is_of_call_site();
        if is_of_others || self.placement.get_ref() != "replicate" {
            return fault(
                at,
                "`code` goes with `placement = \"replicate\"` and with no other key that recognises an object",
            );
        }
        Ok(Subject::Code {
            module: self.code.unwrap_or_default(),
            build_id: self.build_id,
            pages,
        })
    }
}

fn parse_each<T>(
    texts: &[Spanned<String>],
    parse: fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, Fault> {
    let one = |text: &Spanned<String>| {
        parse(text.get_ref()).map_err(|message| (text.span().start, message))
    };
    texts.iter().map(one).collect()
}

/// True if page ranges, each of a first page and a number of pages, ascend without overlap.
fn ascend(mut runs: impl Iterator<Item = (u64, u64)>) -> bool {
    let mut end = 0;
    runs.all(|(first, count)| {
        let is_behind = first >= end;
        end = first + count;
        is_behind
    })
}

/// Reads a range of code pages: first page and number of pages.
fn code_pages(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('+').and_then(|(first, count)| {
        let numbers: (u64, u64) = (first.parse().ok()?, count.parse().ok()?);
        let end = numbers.0.checked_add(numbers.1)?;
        (numbers.1 > 0 && end <= 1 << 52).then_some(numbers)
    });
    parts.ok_or_else(|| {
        format!("`{text}`: expected a page and how many from there on, such as `17+2`")
    })
}
