package changefeed

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Snapshot is a pg_current_snapshot(): which transactions a statement saw.
type Snapshot struct {
	Xmin, Xmax uint64   // all transactions below Xmin had ended; none from Xmax on had begun
	Running    []uint64 // those in between that had not ended, ascending
}

// ParseSnapshot reads xmin:xmax:xip,xip,…
func ParseSnapshot(text string) (s Snapshot, err error) {
	fields := strings.Split(text, ":")
	if len(fields) != 3 {
		return Snapshot{}, fmt.Errorf("snapshot %q: not xmin:xmax:xips", text)
	}
	if s.Xmin, err = strconv.ParseUint(fields[0], 10, 64); err == nil {
		s.Xmax, err = strconv.ParseUint(fields[1], 10, 64)
	}
	if err == nil && fields[2] != "" {
		for xip := range strings.SplitSeq(fields[2], ",") {
			var x uint64
			if x, err = strconv.ParseUint(xip, 10, 64); err != nil {
				break
			}
			s.Running = append(s.Running, x)
		}
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %q: %w", text, err)
	}
	return s, nil
}

// Sees says whether the effects of a transaction, known to have committed, are
// visible to the statement.
func (s *Snapshot) Sees(xid uint64) bool {
	if xid < s.Xmin {
		return true
	}
	if xid >= s.Xmax {
		return false
	}
	_, running := slices.BinarySearch(s.Running, xid)
	return !running
}

// String writes what ParseSnapshot reads.
func (s Snapshot) String() string {
	b := strconv.AppendUint(nil, s.Xmin, 10)
	b = strconv.AppendUint(append(b, ':'), s.Xmax, 10)
	b = append(b, ':')
	for i, xip := range s.Running {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, xip, 10)
	}
	return string(b)
}
