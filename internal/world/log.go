package world

import (
	"slices"

	"listedge/internal/changefeed"
)

// server is a Redis that keeps the log. A read of an epoch that it does not have finds nothing.
type server struct {
	name, epoch string
	logs        map[string]*entries
	checkpoint  map[string]*changefeed.Checkpoint // by epoch
}

type entries struct {
	all  []changefeed.Entry
	last changefeed.Position
}

func newServer(name, epoch string) *server {
	return &server{name, epoch, map[string]*entries{}, map[string]*changefeed.Checkpoint{}}
}

func (s *server) log(epoch string) *entries {
	if s.logs[epoch] == nil {
		s.logs[epoch] = &entries{}
	}
	return s.logs[epoch]
}

// fork returns another server that has all but the latest entries.
func (s *server) fork(name string, without int) *server {
	is := newServer(name, s.epoch)
	for epoch, log := range s.logs {
		kept := slices.Clone(log.all[:len(log.all)-min(without, len(log.all))])
		is.logs[epoch] = &entries{all: kept}
		if len(kept) > 0 {
			is.logs[epoch].last = kept[len(kept)-1].Position
		}
	}
	for epoch, c := range s.checkpoint {
		if c.At.Compare(is.log(epoch).last) <= 0 {
			is.checkpoint[epoch] = c
		}
	}
	return is
}

// append adds entries, unless the log has such positions already, or another epoch is present and they begin no term.
func (s *server) append(epoch string, of []changefeed.Entry) (ok bool) {
	log := s.log(epoch)
	if of[0].Position.Compare(log.last) <= 0 || s.epoch != "" && s.epoch != epoch && of[0].TermStart == nil {
		return false
	}
	log.all = append(log.all, of...)
	log.last = of[len(of)-1].Position
	return true
}

// since returns entries behind a position, and whether there may be more.
func (s *server) since(epoch string, after changefeed.Position) (found []changefeed.Entry, cut bool) {
	const most = 8
	all := s.log(epoch).all
	i, _ := slices.BinarySearchFunc(all, after, func(e changefeed.Entry, p changefeed.Position) int {
		if e.Position.Compare(p) <= 0 {
			return -1
		}
		return 1
	})
	n := min(most, len(all)-i)
	return slices.Clone(all[i : i+n]), n == most
}
