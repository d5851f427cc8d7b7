//! The placement syntax, the same in the plan file and on the command line (see [`Placement`]).

use std::collections::BTreeMap;
use std::fmt;

use nearpage_machine::{DeviceKind, NodeId, NodeList};

use crate::error::SyntaxError;
use crate::size::{bytes_of, print_size};
use crate::{NodeWeights, Owner, PageRun, Parts, Placement, Tiles};

/// Most pages in a row that one weight gives to a node; the kernel's own weights are bytes.
const WEIGHT_MAX: u32 = 255;

impl Placement {
    /// Reads a placement. Node lists take all of numactl's forms among the nodes `known`
    /// (`0,2-3`, `all`, `!1`, `+0-1`); where `known` is empty, plain lists and `all` only, and any
    /// number. `runs` yields no runs: they stand beside it in the plan file.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse_among(text: &str, known: &[NodeId]) -> Result<Self, SyntaxError> {
        Self::among(text, known).map_err(SyntaxError)
    }

    pub(crate) fn among(text: &str, known: &[NodeId]) -> Result<Self, String> {
        let (pattern, team) = match text.split_once('@') {
            Some((_, "")) => return Err("expected the name of a team after `@`".to_owned()),
            Some((pattern, team)) => (pattern, team.to_owned()),
            None => (text, String::new()),
        };
        let (keyword, argument) = match pattern.split_once(':') {
            Some((keyword, argument)) => (keyword, Some(argument)),
            None => (pattern, None),
        };
        if text.contains('@')
            && !matches!(
                keyword,
                "block" | "block-cyclic" | "tiles" | "round-robin" | "object-blocks" | "thread"
            )
        {
            return Err(format!(
                "`{keyword}` is not dealt to threads, so no team goes with it"
            ));
        }
        match (keyword, argument) {
            ("block", None) => Ok(Self::Block { team }),
            ("block", Some(parts)) => Ok(Self::Parts {
                parts: Parts::read(parts)?,
                team,
            }),
            ("tiles", grid) => Ok(Self::Tiles {
                tiles: Tiles::read(grid.unwrap_or_default())?,
                team,
            }),
            ("round-robin", None) => Ok(Self::RoundRobin { team }),
            ("object-blocks", objects) => match objects.map(str::parse) {
                Some(Ok(objects)) if objects > 0 => Ok(Self::ObjectBlocks { objects, team }),
                _ => Err(
                    "`object-blocks` needs the number of objects that there were, as in `object-blocks:2000`"
                        .to_owned(),
                ),
            },
            ("block-cyclic", Some(size)) => match bytes_of(size)? {
                0 => Err("a piece of `block-cyclic` has at least one byte".to_owned()),
                block_bytes => Ok(Self::BlockCyclic { block_bytes, team }),
            },
            ("block-cyclic", None) => {
                Err("`block-cyclic` needs the size of a piece, as in `block-cyclic:20M`".to_owned())
            }
            ("interleave", None | Some("all")) => Ok(Self::Interleave { nodes: Vec::new() }),
            ("interleave", Some(nodes)) => Ok(Self::Interleave {
                nodes: parse_weights(nodes, known)?,
            }),
            ("node" | "near" | "thread", _) => parse_owner(pattern, team, known).map(Self::Whole),
            ("runs", None) => Ok(Self::Runs(Vec::new())),
            ("replicate", None) => Ok(Self::Replicate),
            ("first-touch", None) => Ok(Self::FirstTouch),
            ("round-robin" | "runs" | "replicate" | "first-touch", Some(_)) => {
                Err(format!("`{keyword}` takes nothing after `:`"))
            }
            _ => Err(format!(
                "`{text}` is not a placement; expected `block`, `block:0-48M/64M`, `block-cyclic:20M`, \
                 `tiles:2x4/384K`, `round-robin`, `object-blocks:2000`, `interleave`, `interleave:0,2-3`, `interleave:0=3,1=1`, `node:1`, `near:gpu0`, `thread:2` or `first-touch`"
            )),
        }
    }

    /// Does `text` begin with the keyword of a placement?
    pub(crate) fn begins(text: &str) -> bool {
        let keyword = text.split([':', '@']).next().unwrap_or_default();
        matches!(
            keyword,
            "block"
                | "block-cyclic"
                | "tiles"
                | "round-robin"
                | "object-blocks"
                | "interleave"
                | "node"
                | "near"
                | "thread"
                | "runs"
                | "replicate"
                | "first-touch"
        )
    }

    /// Can it be said of [`crate::Subject::Unmatched`]? The kernel has it as a policy of the process then, and deals
    /// pages to nodes in turn, without weights.
    pub fn fits_unmatched(&self) -> bool {
        match self {
            Self::Interleave { nodes } => nodes.iter().all(|&(_, weight)| weight == 1),
            Self::Whole(Owner::Node(_) | Owner::Near(..)) | Self::FirstTouch => true,
            Self::Whole(Owner::Thread { .. })
            | Self::Block { .. }
            | Self::BlockCyclic { .. }
            | Self::Parts { .. }
            | Self::Tiles { .. }
            | Self::RoundRobin { .. }
            | Self::ObjectBlocks { .. }
            | Self::Runs(_)
            | Self::Replicate => false,
        }
    }

    /// Does it name threads, directly or through their team?
    pub fn names_threads(&self) -> bool {
        match self {
            Self::Block { .. }
            | Self::BlockCyclic { .. }
            | Self::Parts { .. }
            | Self::Tiles { .. }
            | Self::RoundRobin { .. }
            | Self::ObjectBlocks { .. }
            | Self::Whole(Owner::Thread { .. }) => true,
            Self::Runs(runs) => runs
                .iter()
                .any(|run| matches!(run.owner, Owner::Thread { .. })),
            Self::Interleave { .. }
            | Self::Whole(Owner::Node(_) | Owner::Near(..))
            | Self::Replicate
            | Self::FirstTouch => false,
        }
    }
}

/// As [`Placement::parse_among`] reads it.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block { team } => write!(f, "block{}", AtTeam(team)),
            Self::Parts { parts, team } => write!(f, "block:{parts}{}", AtTeam(team)),
            Self::Tiles { tiles, team } => write!(f, "tiles:{tiles}{}", AtTeam(team)),
            Self::RoundRobin { team } => write!(f, "round-robin{}", AtTeam(team)),
            Self::ObjectBlocks { objects, team } => {
                write!(f, "object-blocks:{objects}{}", AtTeam(team))
            }
            Self::BlockCyclic { block_bytes, team } => {
                let size = print_size(*block_bytes);
                write!(f, "block-cyclic:{size}{}", AtTeam(team))
            }
            Self::Interleave { nodes } if nodes.is_empty() => f.write_str("interleave"),
            Self::Interleave { nodes } if nodes.iter().all(|&(_, weight)| weight == 1) => {
                let list: NodeList = nodes.iter().map(|&(node, _)| node).collect();
                write!(f, "interleave:{list}")
            }
            Self::Interleave { nodes } => {
                let parts: Vec<String> = nodes
                    .iter()
                    .map(|(node, weight)| format!("{node}={weight}"))
                    .collect();
                write!(f, "interleave:{}", parts.join(","))
            }
            Self::Whole(owner) => owner.fmt(f),
            Self::Runs(_) => f.write_str("runs"),
            Self::Replicate => f.write_str("replicate"),
            Self::FirstTouch => f.write_str("first-touch"),
        }
    }
}

/// `thread:2`, `thread:2@worker`, `node:1`, `near:gpu0`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Thread { team, index } => write!(f, "thread:{index}{}", AtTeam(team)),
            Self::Node(node) => write!(f, "node:{node}"),
            Self::Near(kind, number) => write!(f, "near:{}{number}", kind.as_str()),
        }
    }
}

struct AtTeam<'a>(&'a str);

impl fmt::Display for AtTeam<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            team => write!(f, "@{team}"),
        }
    }
}

impl PageRun {
    /// Reads `0+128 thread:0`: first page, number of pages, owner.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        Self::read(text).map_err(SyntaxError)
    }

    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "`{text}` is not a run of pages; expected first page, number of pages and owner, \
                 as in `0+128 thread:0`"
            )
        };
        let (pages, owner) = text.split_once(' ').ok_or_else(expected)?;
        let (first_page, pages) = pages.split_once('+').ok_or_else(expected)?;
        let first_page: u64 = first_page.parse().map_err(|_| expected())?;
        let pages: u64 = pages.parse().map_err(|_| expected())?;
        match Placement::among(owner.trim_start(), &[])? {
            Placement::Whole(owner) if pages > 0 && first_page.checked_add(pages).is_some() => {
                Ok(Self {
                    first_page,
                    pages,
                    owner,
                })
            }
            _ => Err(expected()),
        }
    }
}

/// As [`PageRun::parse`] reads it.
impl fmt::Display for PageRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{} {}", self.first_page, self.pages, self.owner)
    }
}

fn parse_owner(text: &str, team: String, known: &[NodeId]) -> Result<Owner, String> {
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse::<u32>().ok()).flatten()
    };
    match text.split_once(':') {
        Some(("node", digits)) => {
            let list = parse_nodes(digits, known)?;
            match list.as_slice() {
                [node] if number(digits).is_some() => Ok(Owner::Node(*node)),
                _ => Err(format!(
                    "`{text}`: expected one node, as in `node:1`; for several, `interleave:{digits}`"
                )),
            }
        }
        Some(("near", device)) => {
            let kinds = [DeviceKind::Gpu, DeviceKind::Nic, DeviceKind::Nvme];
            let of_kind = |kind: &DeviceKind| Some((*kind, device.strip_prefix(kind.as_str())?));
            let (kind, digits) = kinds.iter().find_map(of_kind).unwrap_or((kinds[0], ""));
            number(digits)
                .map(|number| Owner::Near(kind, number))
                .ok_or_else(|| {
                    format!(
                        "`{text}`: expected a device, as in `near:gpu0`, `near:nic1` or `near:nvme0`; `nearpage machine` lists them"
                    )
                })
        }
        Some(("thread", digits)) => match number(digits) {
            Some(index) => Ok(Owner::Thread { team, index }),
            None => Err(format!(
                "`{text}`: expected the number of a thread, as in `thread:2`"
            )),
        },
        _ => Err(format!(
            "`{text}` needs a number, as in `node:1`, `near:gpu0` or `thread:2`"
        )),
    }
}

fn parse_nodes(text: &str, known: &[NodeId]) -> Result<NodeList, String> {
    if !known.is_empty() {
        return NodeList::parse_among(text, known).map_err(|error| error.to_string());
    }
    let list: NodeList = text
        .parse()
        .map_err(|error: nearpage_machine::ListError| error.to_string())?;
    match list.as_slice() {
        [] => Err(format!(
            "`{text}` names no node; expected a list as in `0,2-3`"
        )),
        _ => Ok(list),
    }
}

fn parse_weights(text: &str, known: &[NodeId]) -> Result<NodeWeights, String> {
    if !text.contains('=') {
        let list = parse_nodes(text, known)?;
        return Ok(list.as_slice().iter().map(|&node| (node, 1)).collect());
    }
    let mut nodes = BTreeMap::new();
    for part in text.split(',') {
        let (list, weight) = part.split_once('=').unwrap_or((part, "1"));
        let weight = weight
            .parse()
            .ok()
            .filter(|weight| (1..=WEIGHT_MAX).contains(weight))
            .ok_or_else(|| {
                format!("`{part}`: expected a weight from 1 to {WEIGHT_MAX}, as in `0=3,1=1`")
            })?;
        for &node in parse_nodes(list, known)?.as_slice() {
            if nodes.insert(node, weight).is_some() {
                return Err(format!("`{text}`: node {node} has two weights"));
            }
        }
    }
    Ok(nodes.into_iter().collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::shape;

    fn parse(text: &str) -> Result<Placement, String> {
        Placement::among(text, &[])
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "block",
            "block@worker",
            "block@a team: with \"quotes\" @ = 1",
            "block-cyclic:20M",
            "block-cyclic:4097",
            "block-cyclic:64K@worker",
            "block:0-48M/64M",
            "block:4097-8K,1M-2M/2M@worker",
            "tiles:2x4/384K",
            "tiles:3x1/5000@main+worker",
            "interleave",
            "interleave:0,2-3",
            "interleave:0=3,1=1",
            "node:1",
            "near:gpu0",
            "near:nvme12",
            "thread:2",
            "thread:2@worker",
            "runs",
            "first-touch",
        ] {
            assert_eq!(
                parse(text).map(|placement| placement.to_string()),
                Ok(text.to_owned())
            );
        }
        assert_eq!(parse("interleave:all"), parse("interleave"));
        assert_eq!(parse("interleave:2-3,2"), parse("interleave:2,3"));
        assert_eq!(parse("interleave:0-1=2,3"), parse("interleave:0=2,1=2,3=1"));
        assert_eq!(parse("block-cyclic:2.5MiB"), parse("block-cyclic:2560K"));
    }

    #[test]
    fn as_many_nodes_as_numbers_allow_have_weights() {
        let Ok(Placement::Interleave { nodes }) = parse("interleave:0=5,1-65535") else {
            panic!("every node has one weight")
        };
        assert_eq!((nodes.len(), nodes[0].1, nodes[65535].1), (65536, 5, 1));
    }

    #[test]
    fn numactl_lists_are_relative_to_the_machine() {
        let known = [0, 1, 4].map(NodeId);
        let among = |text| Placement::among(text, &known).map(|p| p.to_string());
        assert_eq!(among("interleave:!0"), Ok("interleave:1,4".to_owned()));
        assert_eq!(among("interleave:+1-2"), Ok("interleave:1,4".to_owned()));
        assert_eq!(among("node:4"), Ok("node:4".to_owned()));
        assert_eq!(
            among("node:2"),
            Err("`2`: there is no node 2 here; there is 0-1,4".to_owned())
        );
    }

    #[test]
    fn unmatched_memory_is_refused_with_an_example() {
        for (text, part) in [
            ("", "expected `block`"),
            ("blocks", "expected `block`"),
            ("block:4", "0-12M,16M-48M/64M"),
            ("block:0-0/4K", "0-12M,16M-48M/64M"),
            ("block:0-8K,4K-12K/16K", "ascending"),
            ("block:8K-12K/4K", "ascending"),
            ("block:0-4K/0", "ascending"),
            ("tiles", "2x4/384K"),
            ("tiles:2x4", "2x4/384K"),
            ("tiles:0x4/64K", "2x4/384K"),
            ("tiles:2x99999/64K", "2x4/384K"),
            ("tiles:2x2/0", "2x4/384K"),
            ("block@", "name of a team"),
            ("block-cyclic", "block-cyclic:20M"),
            ("block-cyclic:0", "at least one byte"),
            ("block-cyclic:x", "not a size"),
            ("interleave:", "names no node"),
            ("interleave:x", "0,2-3"),
            ("interleave:0=0", "from 1 to 255"),
            ("interleave:0=1,0=2", "two weights"),
            ("interleave@worker", "not dealt to threads"),
            ("interleave:99999", "beyond 65535"),
            ("node", "node:1"),
            ("node:0-1", "interleave:0-1"),
            ("near", "near:gpu0"),
            ("near:gpu", "near:gpu0"),
            ("near:disk0", "near:gpu0"),
            ("thread:-1", "thread:2"),
            ("thread:99999999999", "thread:2"),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(part), "{text}: {message}");
        }
        for text in [
            "",
            "0+128",
            "0 thread:0",
            "0+0 thread:0",
            "1+1 block",
            "x+1 node:0",
        ] {
            assert!(PageRun::parse(text).is_err(), "{text}");
        }
        assert!(PageRun::parse("18446744073709551615+1 node:0").is_err());
    }

    /// Names with everything that could break a line, a string or a separator.
    pub(crate) fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z_]{1,12}",
            "[\\PC\n\r\t\u{0}\u{7f}\"'\\\\=@:#\\[\\]]{1,20}"
        ]
    }

    pub(crate) fn owner() -> impl Strategy<Value = Owner> {
        prop_oneof![
            any::<u16>().prop_map(|node| Owner::Node(NodeId(node))),
            any::<u32>().prop_map(|number| Owner::Near(DeviceKind::Nic, number)),
            (any::<u32>(), prop_oneof![Just(String::new()), name()])
                .prop_map(|(index, team)| Owner::Thread { team, index }),
        ]
    }

    pub(crate) fn placement() -> impl Strategy<Value = Placement> {
        let team = || prop_oneof![Just(String::new()), name()];
        prop_oneof![
            team().prop_map(|team| Placement::Block { team }),
            team().prop_map(|team| Placement::RoundRobin { team }),
            (1u32.., team()).prop_map(|(objects, team)| Placement::ObjectBlocks { objects, team }),
            (shape::tests::parts(), team())
                .prop_map(|(parts, team)| Placement::Parts { parts, team }),
            (shape::tests::tiles(), team())
                .prop_map(|(tiles, team)| Placement::Tiles { tiles, team }),
            (1u64.., team())
                .prop_map(|(block_bytes, team)| Placement::BlockCyclic { block_bytes, team }),
            prop::collection::btree_map(any::<u16>().prop_map(NodeId), 1..=WEIGHT_MAX, 0..6)
                .prop_map(|nodes| Placement::Interleave {
                    nodes: nodes.into_iter().collect()
                }),
            owner().prop_map(Placement::Whole),
            prop::collection::vec((0u64..1 << 40, 1u64..1 << 40, owner()), 1..6).prop_map(|runs| {
                let run = |(first_page, pages, owner)| PageRun {
                    first_page,
                    pages,
                    owner,
                };
                Placement::Runs(runs.into_iter().map(run).collect())
            }),
            Just(Placement::Replicate),
            Just(Placement::FirstTouch),
        ]
    }

    proptest! {
        #[test]
        fn survives_printing(placement in placement()) {
            match &placement {
                Placement::Runs(runs) => for run in runs {
                    prop_assert_eq!(PageRun::parse(&run.to_string()), Ok(run.clone()));
                },
                _ => prop_assert_eq!(parse(&placement.to_string()), Ok(placement)),
            }
        }

        #[test]
        fn never_panics(text in "(block|block-cyclic|tiles|interleave|node|thread|\\PC{0,8}):?[0-9,=!+@./xKM-]{0,30}") {
            let _ = parse(&text);
            let _ = Placement::parse_among(&text, &[NodeId(0), NodeId(1)]);
            let _ = PageRun::parse(&text);
        }
    }
}
