//! The placement syntax, the same in the plan file and on the command line (see [`Placement`]).

use std::collections::BTreeMap;
use std::fmt;

use nearpage_machine::{DeviceKind, NodeId, NodeList};

use crate::error::SyntaxError;
use crate::size::{bytes_of, print_size};
use crate::{NodeWeights, Owner, PageRun, Parts, Placement, Tiles};

/// Most pages in a row that a weight gives to a node; the kernel's own weights are bytes.
const WEIGHT_MAX: u32 = 255;

impl Placement {
    /// Reads a placement. Node lists take all of numactl's forms among the nodes `known` (`0,2-3`, `all`, `!1`,
    /// `+0-1`). If no nodes are known, only plain lists and `all` are read, with any node numbers. `runs` yields no
    /// runs: the plan file has them in a key of their own.
    ///
    /// # Errors
    /// The text has another form; the message says what was expected.
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

    /// True if `text` begins with the keyword of a placement.
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

    /// True if the placement fits [`crate::Subject::Unmatched`]. The kernel carries it out as a memory policy of the
    /// process, which deals pages to nodes in turn, without weights.
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

    /// True if an object's place depends on its number among the objects of its call site.
    pub fn goes_by_number(&self) -> bool {
        matches!(self, Self::RoundRobin { .. } | Self::ObjectBlocks { .. })
    }

    /// True if the placement names threads, directly or through their team.
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

/// Prints a placement as [`Placement::parse_among`] reads it.
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
    /// The text has another form; the message says what was expected.
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

/// Prints a run as [`PageRun::parse`] reads it.
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
pub(crate) mod tests;
