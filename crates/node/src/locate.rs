//! Which nodes have which bytes of which files: what a scheduler asks that brings work to its data.

use crate::node::Node;
use futures_util::future::join_all;
use perigee_cluster::Directory;
use perigee_meta::stripe::UNIT;
use perigee_meta::{Kind, Op, Reply};
use perigee_proto::admin::{AdminPath, Located, LocatedFile, LocatedNode, LocatedPiece};
use perigee_types::{ByteRange, Errno, InodeId, NodeId};
use std::collections::BTreeSet;

/// A member's copy of a file, or of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Copy {
    node: NodeId,
    /// What is not current there, in order.
    invalid: Vec<ByteRange>,
}

impl Copy {
    fn has(&self, range: ByteRange) -> bool {
        let next = self.invalid.partition_point(|part| part.end <= range.start);
        let next = self.invalid.get(next);
        next.is_none_or(|part| range.end <= part.start)
    }
}

impl Node {
    /// Finds the bytes of files; of each that cannot be found, why.
    pub async fn locate(&self, paths: Vec<AdminPath>) -> Located {
        let directory = std::sync::Arc::clone(&self.env.directory.read());
        let find = |path: AdminPath| {
            let directory = &directory;
            async move {
                let found = self.pieces_of(directory, &path).await;
                let (size_bytes, pieces, error) = match found {
                    Ok((size, pieces)) => (size, pieces, None),
                    Err(errno) => (0, Vec::new(), Some(errno.to_string())),
                };
                LocatedFile {
                    path,
                    size_bytes,
                    pieces,
                    error,
                }
            }
        };
        let files = join_all(paths.into_iter().map(find)).await;
        let pieces = files.iter().flat_map(|file| &file.pieces);
        let having: BTreeSet<NodeId> = pieces.flat_map(|piece| piece.nodes.clone()).collect();
        let nodes = having.into_iter().filter_map(|id| {
            let node = directory.node(id)?;
            Some(LocatedNode {
                node: id,
                name: node.name.clone(),
                host: node.address.ip().to_string(),
                site: node.site.clone().unwrap_or_default(),
            })
        });
        Located {
            asked: self.env.me,
            nodes: nodes.collect(),
            files,
        }
    }

    async fn pieces_of(
        &self,
        directory: &Directory,
        path: &AdminPath,
    ) -> Result<(u64, Vec<LocatedPiece>), Errno> {
        let attr = self.find(path).await?;
        if attr.kind != Kind::File {
            return Err(Errno::EISDIR);
        }
        let inode = attr.inode;
        let mut columns = vec![inode];
        if attr.layout.has_columns() {
            let Reply::Columns { columns: more, .. } = self.ask(Op::Columns { inode }).await?
            else {
                return Err(Errno::EPROTO);
            };
            columns.extend(more);
        }
        let copies = columns
            .iter()
            .map(|inode| self.copies(directory, *inode, attr.size));
        let copies = join_all(copies).await;
        Ok((attr.size, pieces(attr.size, &copies)))
    }

    /// The copies of the members of a container that answer, the owner's first.
    async fn copies(&self, directory: &Directory, inode: InodeId, size: u64) -> Vec<Copy> {
        let record = directory.container(inode.container());
        let chain = record
            .iter()
            .flat_map(|record| record.chain.iter().copied());
        let ask = |node: NodeId| async move {
            let invalid = self.valid_at(node, inode, size).await?.invalid;
            Some(Copy { node, invalid })
        };
        let answers = join_all(chain.map(ask)).await;
        answers.into_iter().flatten().collect()
    }
}

/// The parts of a file whose chunks lie by turns in `columns`; neighbours that the same nodes have are one.
fn pieces(size: u64, columns: &[Vec<Copy>]) -> Vec<LocatedPiece> {
    let copies = columns.iter().flatten();
    let invalid = copies.flat_map(|copy| &copy.invalid);
    let mut cuts: BTreeSet<u64> = invalid.flat_map(|part| [part.start, part.end]).collect();
    if columns.len() > 1 {
        cuts.extend((0..size).step_by(UNIT as usize));
    }
    cuts.retain(|cut| (1..size).contains(cut));
    let ends = cuts.iter().copied().chain((size > 0).then_some(size));
    let mut pieces: Vec<LocatedPiece> = Vec::new();
    let mut start = 0;
    for end in ends {
        let column = columns.get((start / UNIT) as usize % columns.len().max(1));
        let has = |copy: &&Copy| copy.has(ByteRange::new(start, end));
        let having = column.into_iter().flatten().filter(has);
        let nodes: Vec<NodeId> = having.map(|copy| copy.node).collect();
        match pieces.last_mut().filter(|last| last.nodes == nodes) {
            Some(last) => last.end = end,
            None => pieces.push(LocatedPiece { start, end, nodes }),
        }
        start = end;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(node: u32, invalid: &[(u64, u64)]) -> Copy {
        let range = |(start, end): &(u64, u64)| ByteRange::new(*start, *end);
        Copy {
            node: NodeId(node),
            invalid: invalid.iter().map(range).collect(),
        }
    }

    fn shown(size: u64, columns: &[Vec<Copy>]) -> Vec<(u64, u64, Vec<u32>)> {
        let piece = |piece: LocatedPiece| {
            let nodes = piece.nodes.iter().map(|node| node.0).collect();
            (piece.start, piece.end, nodes)
        };
        pieces(size, columns).into_iter().map(piece).collect()
    }

    #[test]
    fn a_file_falls_into_parts_that_different_nodes_have() {
        assert_eq!(shown(0, &[vec![copy(1, &[])]]), []);
        let whole = [vec![copy(2, &[]), copy(1, &[])]];
        assert_eq!(shown(100, &whole), [(0, 100, vec![2, 1])]);
        let parts = [vec![
            copy(2, &[]),
            copy(1, &[(0, 10), (50, 200)]),
            copy(3, &[(40, 60)]),
        ]];
        assert_eq!(
            shown(100, &parts),
            [
                (0, 10, vec![2, 3]),
                (10, 40, vec![2, 1, 3]),
                (40, 50, vec![2, 1]),
                (50, 60, vec![2]),
                (60, 100, vec![2, 3]),
            ]
        );
        assert_eq!(shown(7, &[Vec::new()]), [(0, 7, vec![])], "nobody answers");
    }

    #[test]
    fn chunks_of_striped_files_are_where_their_columns_are() {
        let columns = [vec![copy(1, &[])], vec![copy(2, &[]), copy(1, &[])]];
        let half = UNIT / 2;
        assert_eq!(
            shown(3 * UNIT - half, &columns),
            [
                (0, UNIT, vec![1]),
                (UNIT, 2 * UNIT, vec![2, 1]),
                (2 * UNIT, 3 * UNIT - half, vec![1]),
            ]
        );
    }
}
