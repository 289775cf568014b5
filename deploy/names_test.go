package deploy_test

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// names answers as Docker's resolver does: the name of a service has the addresses of
// all its containers, in an order that changes.
type names struct {
	address string // host:port

	mu    sync.Mutex // guards hosts
	hosts [][4]byte
}

func startNames(t *testing.T) *names {
	t.Helper()
	socket := must1(net.ListenPacket("udp", "127.0.0.1:0"))
	n, ended := &names{address: socket.LocalAddr().String()}, make(chan struct{})
	t.Cleanup(func() { socket.Close(); <-ended })
	go func() {
		defer close(ended)
		for question := make([]byte, 4096); ; {
			size, from, err := socket.ReadFrom(question)
			if err != nil {
				return
			}
			if answer, err := n.answer(question[:size]); err == nil {
				_, _ = socket.WriteTo(answer, from)
			}
		}
	}()
	return n
}

func (n *names) answer(question []byte) ([]byte, error) {
	var p dnsmessage.Parser
	header, err := p.Start(question)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	header.Response, header.Authoritative = true, true
	answer := dnsmessage.Message{Header: header, Questions: []dnsmessage.Question{q}}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, host := range n.hosts {
		if q.Type == dnsmessage.TypeA && q.Name.String() == "node." {
			answer.Answers = append(answer.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 600},
				Body:   &dnsmessage.AResource{A: host}})
		}
	}
	if len(n.hosts) > 0 {
		n.hosts = append(n.hosts[1:], n.hosts[0])
	}
	return answer.Pack()
}

func (n *names) add(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts = append(n.hosts, netip.MustParseAddr(host).As4())
}

func (n *names) remove(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts = slices.DeleteFunc(n.hosts, func(h [4]byte) bool { return netip.AddrFrom4(h).String() == host })
}
