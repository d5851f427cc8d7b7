//! Shares of parts of an object.

use nearpage_wire::compact_plan::{Rule, placement, subject};

use super::Dealer;
use crate::{Error, Parts};

impl Dealer<'_> {
    /// Rules for shares of an object's parts, divided among the threads of the run.
    pub(super) fn place_parts(
        &mut self,
        rule: Rule,
        parts: &Parts,
        team: &str,
    ) -> Result<Vec<Rule>, Error> {
        let nodes = self.team_nodes(team)?;
        let has_size = matches!(rule.subject, subject::STATIC | subject::BRK_HEAP);
        let size_bytes = match has_size && rule.size_bytes > 0 {
            true => rule.size_bytes,
            false => parts.of_bytes(),
        };
        let page_bytes = u64::from(self.target.page_bytes).max(1);
        // A page in which two shares meet belongs to the share with more of it.
        let page = |offset: u64| offset.saturating_add(page_bytes / 2) / page_bytes * page_bytes;
        let shares = parts.shares(size_bytes, nodes.len());
        let ends = shares.iter().skip(1).map(|share| page(share.0));
        let ends = ends.chain([size_bytes]);
        let owned = shares.iter().zip(ends);
        let owned: Vec<_> = owned
            .map(|(&(start, thread), end)| (page(start), end, nodes[thread]))
            .filter(|(start, end, _)| start < end)
            .collect();
        let pages = size_bytes.div_ceil(page_bytes).max(1);
        Ok(match rule.subject {
            _ if has_size => vec![self.with_runs(rule, &owned, None)],
            subject::CALL_SITE => self.place_owned(rule, &owned, size_bytes, 0),
            _ => vec![Rule {
                placement: placement::BLOCK,
                nodes: self.shares(&owned, size_bytes, pages),
                ..rule
            }],
        })
    }
}
