//! Holders: the thread or nodes near which a part of an object is under a placement.

use std::borrow::Cow;

use nearpage_machine::NodeId;
use nearpage_plan::{Owner, Placement, Tiles};
use nearpage_recording::ThreadIndex;
use nearpage_wire::compact_plan::share_of_object;

use crate::context::Context;
use crate::place::Places;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Holder<'a> {
    /// On the node of a thread.
    Thread(ThreadIndex),
    /// On a node.
    Node(NodeId),
    /// On one of these nodes, with these shares.
    Spread(&'a [(NodeId, f64)]),
    /// A copy on each node.
    Everywhere,
}

impl Holder<'_> {
    /// Calls `by` with position and share of each node that serves a CPU on the node at position `reader`.
    pub fn serve(self, context: &Context, reader: usize, mut by: impl FnMut(usize, f64)) {
        let mut on = |memory: Option<usize>, share: f64| {
            if let Some(memory) = memory {
                by(memory, share);
            }
        };
        match self {
            Holder::Thread(owner) => on(context.node_position(owner), 1.0),
            Holder::Node(node) => on(context.machine.position(node), 1.0),
            Holder::Spread(nodes) => {
                for &(node, share) in nodes {
                    on(context.machine.position(node), share);
                }
            }
            Holder::Everywhere => on(Some(reader), 1.0),
        }
    }

    /// Mean latency of an access by a CPU on the node at position `reader`.
    /// `latency_ns`: latencies `[CPU's node][memory's node]`.
    pub fn latency_ns(self, context: &Context, reader: usize, latency_ns: &[Vec<f64>]) -> f64 {
        let mut sum_ns = 0.0;
        self.serve(context, reader, |memory, share| {
            sum_ns += share * latency_ns[reader][memory];
        });
        sum_ns
    }

    /// The share of a page at a place: a spread page is there as often as the nodes' shares say, a copied one always.
    pub fn share_at(self, place: usize, places: &Places) -> f64 {
        match self {
            Holder::Spread(nodes) => {
                let here = nodes
                    .iter()
                    .filter(|(node, _)| places.position(*node) == Some(place));
                here.map(|(_, share)| share).sum()
            }
            Holder::Everywhere => 1.0,
            Holder::Thread(_) | Holder::Node(_) => f64::from(self.place(places) == Some(place)),
        }
    }

    /// The place of the page; none for pages that are spread or copied.
    pub fn place(self, places: &Places) -> Option<usize> {
        match self {
            Holder::Thread(thread) => places.of(thread),
            Holder::Node(node) => places.position(node),
            Holder::Spread(_) | Holder::Everywhere => None,
        }
    }
}

/// Holder of object `number` of its call site; none if the placement does not deal out whole objects.
pub(crate) fn of_instance<'a>(
    placement: &Placement,
    context: &Context<'a>,
    number: u32,
) -> Option<Holder<'a>> {
    match placement {
        Placement::RoundRobin { team } => {
            let threads = context.team(team)?;
            let turn = (number as usize).checked_rem(threads.len())?;
            Some(Holder::Thread(threads[turn]))
        }
        Placement::ObjectBlocks { objects, team } => {
            let threads = context.team(team)?;
            let share = share_of_object(number, *objects, threads.len() as u32);
            threads
                .get(share as usize)
                .map(|&thread| Holder::Thread(thread))
        }
        Placement::Whole(_) => match ResolvedPlacement::new(placement, context, 0)? {
            ResolvedPlacement::Whole(holder) => Some(holder),
            _ => None,
        },
        _ => None,
    }
}

/// A placement with its owners looked up, which gives the holder of each offset.
pub(crate) enum ResolvedPlacement<'a> {
    Shares {
        threads: Cow<'a, [ThreadIndex]>,
        size_bytes: u64,
    },
    Pieces {
        threads: Cow<'a, [ThreadIndex]>,
        block_bytes: u64,
    },
    Whole(Holder<'a>),
    Tiles {
        threads: Cow<'a, [ThreadIndex]>,
        tiles: Tiles,
        size_bytes: u64,
    },
    /// First byte and holder of each run, ascending.
    Runs(Vec<(u64, Holder<'a>)>),
    Spread(Vec<(NodeId, f64)>),
    Everywhere,
}

impl<'a> ResolvedPlacement<'a> {
    /// `None` for first touch, for owners that the recording does not have, and for placements that deal objects by
    /// their number ([`of_instance`]).
    pub fn new(placement: &Placement, context: &Context<'a>, size_bytes: u64) -> Option<Self> {
        let team = |name: &str| context.team(name).filter(|threads| !threads.is_empty());
        let holder = |owner: &Owner| match owner {
            Owner::Node(node) => Some(Holder::Node(*node)),
            Owner::Near(kind, number) => {
                let device = context.machine.device(*kind, *number)?;
                device.node.map(Holder::Node)
            }
            Owner::Thread { team: name, index } => {
                let threads = team(name)?;
                Some(Holder::Thread(threads[*index as usize % threads.len()]))
            }
        };
        match placement {
            Placement::FirstTouch
            | Placement::RoundRobin { .. }
            | Placement::ObjectBlocks { .. } => None,
            Placement::Replicate => Some(Self::Everywhere),
            Placement::Block { team: name } => Some(Self::Shares {
                threads: team(name)?,
                size_bytes: size_bytes.max(1),
            }),
            Placement::BlockCyclic {
                block_bytes,
                team: name,
            } => Some(Self::Pieces {
                threads: team(name)?,
                block_bytes: (*block_bytes).max(1),
            }),
            Placement::Parts { parts, team: name } => {
                let threads = team(name)?;
                let shares = parts.shares(size_bytes.max(1), threads.len()).into_iter();
                let shares = shares.map(|(begin, thread)| (begin, Holder::Thread(threads[thread])));
                Some(Self::Runs(shares.collect()))
            }
            Placement::Tiles { tiles, team: name } => Some(Self::Tiles {
                threads: team(name)?,
                tiles: *tiles,
                size_bytes,
            }),
            Placement::Whole(owner) => holder(owner).map(Self::Whole),
            Placement::Runs(runs) => {
                let first = |page: u64| page.saturating_mul(context.page_bytes);
                let runs = runs
                    .iter()
                    .filter_map(|run| Some((first(run.first_page), holder(&run.owner)?)));
                let runs: Vec<_> = runs.collect();
                (!runs.is_empty()).then_some(Self::Runs(runs))
            }
            Placement::Interleave { nodes } if nodes.is_empty() => {
                let all = context.machine.nodes_with_memory();
                let share = 1.0 / all.len().max(1) as f64;
                Some(Self::Spread(
                    all.into_iter().map(|node| (node, share)).collect(),
                ))
            }
            Placement::Interleave { nodes } => {
                let total: f64 = nodes.iter().map(|&(_, weight)| f64::from(weight)).sum();
                let share = |weight: u32| f64::from(weight) / total.max(1.0);
                Some(Self::Spread(
                    nodes
                        .iter()
                        .map(|&(node, weight)| (node, share(weight)))
                        .collect(),
                ))
            }
        }
    }

    /// Holder of the byte at `offset`. Share `k` of `T` ends at size × (k + 1) ÷ `T`; enforcement rounds the end to
    /// pages.
    pub fn holder(&self, offset: u64) -> Holder<'_> {
        match self {
            Self::Shares {
                threads,
                size_bytes,
            } => {
                let share = u128::from(offset) * threads.len() as u128 / u128::from(*size_bytes);
                Holder::Thread(threads[(share as usize).min(threads.len() - 1)])
            }
            Self::Pieces {
                threads,
                block_bytes,
            } => Holder::Thread(threads[(offset / block_bytes % threads.len() as u64) as usize]),
            Self::Tiles {
                threads,
                tiles,
                size_bytes,
            } => {
                let thread = tiles.thread(offset, *size_bytes, threads.len() as u32);
                Holder::Thread(threads[thread as usize])
            }
            Self::Whole(holder) => *holder,
            Self::Runs(runs) => {
                runs[runs
                    .partition_point(|run| run.0 <= offset)
                    .saturating_sub(1)]
                .1
            }
            Self::Spread(nodes) => Holder::Spread(nodes),
            Self::Everywhere => Holder::Everywhere,
        }
    }
}
