package cache

import "encoding/binary"

// AppendKey appends the key of a page: the workspace, then each part behind
// its length. Injective, whatever the parts hold: two different lists of parts
// of one workspace, or the same list in two workspaces, never make one key.
// The same key serves memory, Redis and collapsing.
func AppendKey(dst []byte, workspace [16]byte, parts ...[]byte) []byte {
	dst = append(dst, workspace[:]...)
	for _, part := range parts {
		dst = binary.AppendUvarint(dst, uint64(len(part)))
		dst = append(dst, part...)
	}
	return dst
}
