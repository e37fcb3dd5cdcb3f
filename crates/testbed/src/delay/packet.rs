//! What is read of a packet: where it goes, and how much of a wire it takes.

use super::Traffic;
use std::net::Ipv4Addr;

/// The header before each packet of a device (`virtio_net_hdr`): flags, kind, the length of the headers, the size of a
/// segment, and two places for a checksum.
pub(super) const VIRTIO_BYTES: usize = 10;
/// The largest packet that a device gives, with that header.
pub(super) const PACKET_MAX: usize = VIRTIO_BYTES + 65_536;

const SEGMENT_AT: usize = 4;
const TCP: u8 = 6;

/// A packet's way and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) to: Ipv4Addr,
    pub(super) size: Traffic,
}

/// Looks at a packet as a device gives it; none where it is no IPv4.
pub(super) fn look(given: &[u8]) -> Option<Seen> {
    let (virtio, packet) = given.split_at_checked(VIRTIO_BYTES)?;
    let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    if packet[0] >> 4 != 4 {
        return None;
    }
    let segment = usize::from(u16::from_ne_bytes([
        virtio[SEGMENT_AT],
        virtio[SEGMENT_AT + 1],
    ]));
    let headers = headers_of(packet);
    let content = packet.len().saturating_sub(headers);
    let segments = match segment {
        0 => 1,
        segment => content.div_ceil(segment).max(1),
    };
    Some(Seen {
        to: Ipv4Addr::from(to),
        size: Traffic {
            segments: segments as u64,
            bytes: (packet.len() + (segments - 1) * headers) as u64,
        },
    })
}

/// What each segment of it repeats.
fn headers_of(packet: &[u8]) -> usize {
    let ip = usize::from(packet[0] & 15) * 4;
    let tcp = match (packet.get(9), packet.get(ip + 12)) {
        (Some(&TCP), Some(offset)) => usize::from(offset >> 4) * 4,
        _ => 0,
    };
    ip + tcp
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp_packet(content: usize, segment: u16) -> Vec<u8> {
        let mut given = vec![0; VIRTIO_BYTES + 52 + content];
        given[SEGMENT_AT..SEGMENT_AT + 2].copy_from_slice(&segment.to_ne_bytes());
        let packet = &mut given[VIRTIO_BYTES..];
        packet[0] = 0x45;
        packet[9] = TCP;
        packet[16..20].copy_from_slice(&[10, 77, 0, 3]);
        // 32 bytes of headers: TCP with time stamps.
        packet[20 + 12] = 8 << 4;
        given
    }

    #[test]
    fn a_piece_counts_as_the_segments_that_it_will_be() {
        let seen = look(&tcp_packet(3_000, 1_448)).unwrap();
        assert_eq!(seen.to, Ipv4Addr::new(10, 77, 0, 3));
        assert_eq!(seen.size.segments, 3);
        assert_eq!(seen.size.bytes, 3_000 + 3 * 52);
    }

    #[test]
    fn a_packet_that_is_not_to_be_cut_counts_as_itself() {
        let seen = look(&tcp_packet(100, 0)).unwrap();
        assert_eq!((seen.size.segments, seen.size.bytes), (1, 152));
        let empty = look(&tcp_packet(0, 1_448)).unwrap();
        assert_eq!((empty.size.segments, empty.size.bytes), (1, 52));
    }

    #[test]
    fn what_is_no_whole_ipv4_is_nothing() {
        let mut sixth = tcp_packet(100, 0);
        sixth[VIRTIO_BYTES] = 0x60;
        assert_eq!(look(&sixth), None);
        let whole = tcp_packet(0, 1_448);
        for len in 0..VIRTIO_BYTES + 20 {
            assert_eq!(look(&whole[..len]), None);
        }
        for len in VIRTIO_BYTES + 20..whole.len() {
            assert!(look(&whole[..len]).is_some());
        }
    }
}
