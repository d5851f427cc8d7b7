//! Sizes of blocks.

/// A block of the size that enforcement can do; see the module.
pub(crate) fn whole_pages(block_bytes: u64, size_bytes: u64, page_bytes: u64) -> u64 {
    let page = page_bytes.max(1);
    if block_bytes <= page {
        return page;
    }
    let whole = (block_bytes + page / 2) / page * page;
    let pieces = u128::from(size_bytes / block_bytes);
    let drift = u128::from(whole.abs_diff(block_bytes)) * pieces;
    if drift <= u128::from(block_bytes / 2) {
        whole
    } else {
        block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::whole_pages;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn blocks_become_whole_pages() {
        // NumaMMA's cjac under huge pages.
        assert_eq!(whole_pages(640 * KIB, 20 * MIB, 2 * MIB), 2 * MIB);
        assert_eq!(whole_pages(640 * KIB, 20 * MIB, 4 * KIB), 640 * KIB);
        assert_eq!(whole_pages(5 * MIB + 100, 558 * MIB, 4 * KIB), 5 * MIB);
        // Rounded to 4 or 6 MiB, the pieces would be out of step before a tenth of the object.
        assert_eq!(whole_pages(5 * MIB, 558 * MIB, 2 * MIB), 5 * MIB);
        assert_eq!(whole_pages(0, 0, 0), 1);
    }
}
