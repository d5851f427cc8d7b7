//! Reads the node of every page of a range, as `workloads/pagenodes` prints it.

use std::collections::BTreeMap;
use std::ops::Range;

/// Base page size of the guest and of all machines that run the tests.
pub const PAGE_BYTES: u64 = 4096;

/// Nodes of the pages of an address range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageNodes {
    runs: Vec<Run>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    start: u64,
    pages: u64,
    node: Option<u32>,
}

impl PageNodes {
    /// Parses lines of `0xSTART PAGES NODE`; an error is the line that could not be parsed.
    pub fn parse(text: &str) -> Result<PageNodes, String> {
        let runs: Result<_, _> = text
            .lines()
            .map(|line| parse_run(line).ok_or_else(|| line.to_owned()))
            .collect();
        runs.map(|runs| PageNodes { runs })
    }

    /// Address and node of every page present.
    pub fn present(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.runs.iter().flat_map(|run| {
            (0..run.pages).filter_map(move |page| Some((run.start + page * PAGE_BYTES, run.node?)))
        })
    }

    /// Pages present on each node.
    pub fn count(&self) -> BTreeMap<u32, u64> {
        let mut count = BTreeMap::new();
        for (_, node) in self.present() {
            *count.entry(node).or_default() += 1;
        }
        count
    }

    /// Share of the present pages that are on the node `expected` returns for their address. Pages without an expected
    /// node are left out; 1 if all are left out.
    pub fn share_where(&self, expected: impl Fn(u64) -> Option<u32>) -> f64 {
        let (mut asked, mut right) = (0u64, 0u64);
        for (address, node) in self.present() {
            if let Some(expected) = expected(address) {
                asked += 1;
                right += u64::from(node == expected);
            }
        }
        if asked == 0 {
            1.0
        } else {
            right as f64 / asked as f64
        }
    }
}

/// A page's middle byte, or the object's byte nearest to it. Where objects or threads share a page, the page counts to
/// whoever has this byte.
pub fn middle_of(object: &Range<u64>, page: u64) -> u64 {
    (page + PAGE_BYTES / 2).clamp(object.start, object.end - 1)
}

/// Number of the share that contains an address, if a range is divided into `shares` equal shares.
pub fn share_of(range: &Range<u64>, shares: u32, address: u64) -> u32 {
    let offset = u128::from(address - range.start);
    (offset * u128::from(shares) / u128::from(range.end - range.start)) as u32
}

fn parse_run(line: &str) -> Option<Run> {
    let mut words = line.split_whitespace();
    let start = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    let pages = words.next()?.parse().ok()?;
    // A negative node is the kernel's error code for an absent page.
    let node: i64 = words.next()?.parse().ok()?;
    Some(Run {
        start,
        pages,
        node: u32::try_from(node).ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "0x1000 2 0\n0x3000 1 -2\n0x4000 1 3\n";

    #[test]
    fn pages_not_present_are_left_out() {
        let nodes = PageNodes::parse(SAMPLE).unwrap();
        assert_eq!(
            nodes.present().collect::<Vec<_>>(),
            [(0x1000, 0), (0x2000, 0), (0x4000, 3)]
        );
        assert_eq!(nodes.count(), BTreeMap::from([(0, 2), (3, 1)]));
    }

    #[test]
    fn shares() {
        let nodes = PageNodes::parse(SAMPLE).unwrap();
        assert_eq!(nodes.share_where(|_| Some(0)), 2.0 / 3.0);
        assert_eq!(
            nodes.share_where(|address| (address == 0x4000).then_some(3)),
            1.0
        );
        let object = 0x1010..0x5010;
        let of = |page| share_of(&object, 4, middle_of(&object, page));
        assert_eq!(
            [of(0x1000), of(0x2000), of(0x3000), of(0x4000), of(0x5000)],
            [0, 1, 2, 3, 3]
        );
    }

    #[test]
    fn a_line_that_is_none() {
        assert_eq!(PageNodes::parse("0x1000 2\n"), Err("0x1000 2".into()));
    }
}
