package origin

import (
	"sync/atomic"
	"unsafe"

	"listedge/prefetch"
)

// nearKeys finds keys without a lock, and for one line of memory: where there
// are many keys, each line that finding one takes is a wait, and a map's are
// three or four. It may lack a key, which the map then has.
//
// Invariant: it has no key that its shard has not. For it is written under the
// lock of the key's shard, if only under that for reading: who forgets a key
// either finds it here, or nobody puts it here afterwards. What two who put keys
// of one line at once make of it may be a tag that leads to another key, which
// is told by its hash, or one key twice.
type nearKeys[T any] struct{ lines []nearLine[T] }

type nearLine[T any] struct {
	keys [nearWays]atomic.Pointer[KnownKey[T]]
	tags [nearWays]atomic.Uint32 // of their hashes
	_    [64 - nearWays*(8+4)]byte
}

const (
	nearWays  = 5  // keys that fill a line of memory
	nearLines = 64 // at first
	nearFull  = 2  // keys for each line: with so many, one of sixty has no room
)

func newNearKeys[T any](lines int) *nearKeys[T] { return &nearKeys[T]{make([]nearLine[T], lines)} }

// line returns the line where the key is, if it is anywhere, and its tag.
func (n *nearKeys[T]) line(hash KeyHash) (line *nearLine[T], tag uint32) {
	b := hash.beginning()
	return &n.lines[b&uint64(len(n.lines)-1)], uint32(b >> 32)
}

// at returns the key, or nil.
func (n *nearKeys[T]) at(hash KeyHash) *KnownKey[T] {
	line, tag := n.line(hash)
	for i := range line.tags {
		if line.tags[i].Load() != tag {
			continue
		}
		if k := line.keys[i].Load(); k != nil {
			prefetch.Memory(unsafe.Pointer(k), unsafe.Sizeof(*k))
			if k.hash == hash {
				return k
			}
		}
	}
	return nil
}

// put has the key found here, in place of another if its line is full. The
// key's shard is locked.
func (n *nearKeys[T]) put(k *KnownKey[T]) {
	line, tag := n.line(k.hash)
	way := int(tag % nearWays)
	for i := range line.keys {
		if line.keys[i].Load() == nil {
			way = i
			break
		}
	}
	line.tags[way].Store(tag)
	line.keys[way].Store(k)
}

// drop has it found here no more. Its shard is locked for writing.
func (n *nearKeys[T]) drop(k *KnownKey[T]) {
	line, _ := n.line(k.hash)
	for i := range line.keys {
		line.keys[i].CompareAndSwap(k, nil)
	}
}

// putNear has the key found without a lock from now on. Where there are too
// many keys for the lines there are, twice as many lines begin empty: each key
// comes in as it is asked for next. Its shard is locked.
func (r *Keyring[T]) putNear(k *KnownKey[T]) {
	near := r.near.Load()
	if lines := len(near.lines); r.size.Load() > int64(nearFull*lines) {
		r.near.CompareAndSwap(near, newNearKeys[T](2*lines)) // else somebody else has
		near = r.near.Load()
	}
	near.put(k)
}
