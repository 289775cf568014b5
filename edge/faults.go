package edge

import (
	"fmt"
	"strings"
)

// details tells, for each parameter at fault, what is wrong with it.
type details map[string]string

// faults are the parameters at fault. Those that the collection has, six at
// most, are all in details. Of unknown ones only the first are, with the
// beginnings of their names: an answer is bounded, however many a client sends.
type faults struct {
	details details
	unknown int // in details
	unnamed int // unknown ones that are not in details, as often as they are given
}

const (
	maxFaults  = 16            // in details
	maxUnknown = maxFaults - 6 // of these
	maxName    = 64            // bytes of an unknown parameter's name
)

func (f *faults) has(name string) bool { return f.details[name] != "" }

// blame tells what is wrong with a parameter, unless that has been told already.
func (f *faults) blame(name, why string) {
	if f.details == nil {
		f.details = details{}
	}
	if !f.has(name) {
		f.details[name] = why
	}
}

// blameUnknown tells what is wrong with a name that no parameter has. Bytes that
// are not UTF-8 are replaced.
func (f *faults) blameUnknown(sent []byte, why string) {
	name := clip(strings.ToValidUTF8(strings.ReplaceAll(string(sent[:min(len(sent), 2*maxName)]), "\x00", "%00"), "\uFFFD"), maxName)
	switch {
	case f.has(name):
	case f.unknown == maxUnknown:
		f.unnamed++
	default:
		f.blame(name, why)
		f.unknown++
	}
}

// message is the problem's, with the number of parameters that details lacks.
func (f *faults) message(p *problem) string {
	if f.unnamed == 0 {
		return p.message
	}
	return fmt.Sprintf("%s Beside those in details, %d more are unknown.", p.message, f.unnamed)
}
