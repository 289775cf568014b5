package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/valyala/fasthttp"
)

// connections under load: enough to keep a small machine busy.
const connections = 32

// serveBare is the other side of a hit: the same server with the same
// settings, and a handler that writes as many bytes as it is asked for, or a 304.
func serveBare(address string) {
	body := make([]byte, 1<<20)
	s := &fasthttp.Server{
		Handler: func(ctx *fasthttp.RequestCtx) {
			n, _ := ctx.QueryArgs().GetUint("bytes")
			if n < 0 {
				ctx.SetStatusCode(fasthttp.StatusNotModified)
				return
			}
			ctx.SetContentType("application/json")
			ctx.SetBody(body[:n])
		},
		ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 75 * time.Second,
		ReadBufferSize: 16 << 10, WriteBufferSize: 64 << 10, MaxRequestBodySize: 1,
		NoDefaultServerHeader: true, LazyRequestTime: true,
	}
	if err := s.ListenAndServe(address); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// measureHits compares memory hits with the bare handler, in CPU time per
// request and allocations per request.
func measureHits(ctx context.Context, s *subject, table *tabwriter.Writer) error {
	ours, err := startServer(s.program, func(address, admin string) []string {
		return []string{"serve", "--listen", address, "--admin-listen", admin, "--cache-ttl", "1h", "--drain", "0s"}
	}, "LISTEDGE_DATABASE_URL="+s.url)
	if err != nil {
		return err
	}
	defer func() { _ = ours.End(10*time.Second, syscall.SIGTERM, syscall.SIGKILL) }()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	bare, err := startServer(program, func(address, _ string) []string { return []string{bareArgument, address} })
	if err != nil {
		return err
	}
	defer func() { _ = bare.End(10*time.Second, syscall.SIGTERM, syscall.SIGKILL) }()

	for _, c := range []struct {
		what     string
		limit    int
		encoding string
	}{
		{"memory hit, 50 items", 50, "identity"},
		{"memory hit, 10 items", 10, "identity"},
		{"memory hit, 50 items, gzip", 50, "gzip"},
	} {
		request := get(itemsPath(c.limit), header("X-API-Key", s.key), header("Accept-Encoding", c.encoding))
		if err := awaitAnswer(ours.address, request); err != nil {
			return err
		}
		size, err := answerSize(ours.address, request)
		if err != nil {
			return err
		}
		// The bare answer gets a body as much longer as its header is shorter.
		plain, err := answerSize(bare.address, get("/?bytes=10000"))
		if err != nil {
			return err
		}
		bareRequest := get("/?bytes=" + strconv.Itoa(size-plain+10_000))
		var a, b cost
		for range rounds {
			if err := errors.Join(a.round(ctx, ours, request), b.round(ctx, bare, bareRequest)); err != nil {
				return err
			}
		}
		row(table, fmt.Sprintf("%s (%d bytes): CPU per request, µs, against a bare handler", c.what, size), "%.2f", micros(a.cpu, a.requests), micros(b.cpu, b.requests))
		fmt.Fprintf(table, "%s: allocations per request\t%.3f\t%.3f\t\n", c.what, a.allocations/float64(a.requests), 0.0)
	}
	return ctx.Err()
}

// cost is what a server has used in the rounds so far.
type cost struct {
	requests    int
	cpu         time.Duration
	allocations float64 // of listedge; the bare handler does not tell
}

func (c *cost) round(ctx context.Context, s *server, request []byte) error {
	allocated := s.mallocs()
	before, err := s.cpu()
	if err != nil {
		return err
	}
	n, err := drive(ctx, s.address, request, roundTime)
	if err != nil {
		return err
	}
	after, err := s.cpu()
	c.requests += n
	c.cpu += after - before
	c.allocations += s.mallocs() - allocated
	return err
}

// mallocs reads the Go runtime's count of allocations from the metrics.
func (s *server) mallocs() float64 {
	r, err := http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "go_memstats_mallocs_total "); ok {
			n, _ := strconv.ParseFloat(value, 64)
			return n
		}
	}
	return 0
}

// drive sends the request over and over on some connections, each waiting for
// its answer, and returns how many were answered.
func drive(ctx context.Context, address string, request []byte, d time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	counts, errs := make([]int, connections), make([]error, connections)
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				errs[i] = err
				return
			}
			defer conn.Close()
			reader := bufio.NewReaderSize(conn, 64<<10)
			for ctx.Err() == nil {
				if _, err := conn.Write(request); err != nil {
					errs[i] = err
					return
				}
				if _, err := skipAnswer(reader); err != nil {
					errs[i] = err
					return
				}
				counts[i]++
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return total, errors.Join(errs...)
}

// skipAnswer reads one answer of status 200 and returns its size in bytes.
func skipAnswer(r *bufio.Reader) (size int, err error) {
	length := -1
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		size += len(line)
		switch {
		case first && string(line[9:12]) != "200":
			return 0, fmt.Errorf("answered %s", line)
		case len(line) == 2:
			if length < 0 {
				return 0, errors.New("an answer without Content-Length")
			}
			_, err := r.Discard(length)
			return size + length, err
		case len(line) > 16 && strings.EqualFold(string(line[:16]), "Content-Length: "):
			if length, err = strconv.Atoi(string(line[16 : len(line)-2])); err != nil {
				return 0, err
			}
		}
	}
}

func answerSize(address string, request []byte) (int, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if _, err := conn.Write(request); err != nil {
		return 0, err
	}
	return skipAnswer(bufio.NewReader(io.Reader(conn)))
}

func awaitAnswer(address string, request []byte) (err error) {
	for range 500 {
		if _, err = answerSize(address, request); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}
