// Package pgtest runs a PostgreSQL server of this machine's for as long as tests need it.
package pgtest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver
)

// ErrAbsent: there is no PostgreSQL here.
var ErrAbsent = errors.New("pgtest: no PostgreSQL server is installed (Debian: apt-get install postgresql)")

// patience is for a server that starts on a busy machine.
const patience = 60 * time.Second

// Server is a server with one database. Nobody but this machine reaches it.
type Server struct {
	dir  string
	port int
	cmd  *exec.Cmd
	said bytes.Buffer // until it has ended
}

// Start starts a server with files in a new folder. Stop is to follow.
func Start() (*Server, error) {
	initdb, postgres := find("initdb"), find("postgres")
	if initdb == "" || postgres == "" {
		return nil, ErrAbsent
	}
	dir, err := os.MkdirTemp("", "kvasir-pg-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	if err := s.start(initdb, postgres); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// find looks for a program, also where Debian keeps those of PostgreSQL.
func find(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	list, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(list) == 0 {
		return ""
	}
	return slices.Max(list)
}

func (s *Server) start(initdb, postgres string) error {
	data := filepath.Join(s.dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	c := exec.Command(initdb, "-D", data, "-U", "kvasir", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8")
	if err := s.give(c, s.dir, data); err != nil {
		return err
	}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("pgtest: initdb: %w: %.400s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr, ok := l.Addr().(*net.TCPAddr)
	if err := l.Close(); err != nil || !ok {
		return fmt.Errorf("pgtest: no port: %w", err)
	}
	s.port = addr.Port
	s.cmd = exec.Command(postgres, "-D", data, "-p", strconv.Itoa(s.port), "-h", "127.0.0.1", "-k", "", "-c", "fsync=off", "-c", "max_connections=200")
	s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
	if err := s.give(s.cmd); err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := s.exec("SELECT 1")
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("pgtest: the server does not answer: %w", err), s.halt())
		}
	}
}

// give has a command run as a user who may run PostgreSQL, which root may not, and gives him some paths.
func (s *Server) give(c *exec.Cmd, paths ...string) error {
	c.Dir = s.dir
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return fmt.Errorf("%w, which root may run: %w", ErrAbsent, err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return err
	}
	become(c, uid, gid)
	for _, p := range paths {
		if err := os.Chown(p, uid, gid); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) exec(query string) error {
	db, err := sql.Open("pgx", s.address(""))
	if err != nil {
		return err
	}
	_, err = db.ExecContext(context.Background(), query)
	return errors.Join(err, db.Close())
}

func (s *Server) address(query string) string {
	return fmt.Sprintf("postgres://kvasir@127.0.0.1:%d/postgres?sslmode=disable%s", s.port, query)
}

// Database makes a name space that is empty, unless it is there, and returns its address.
func (s *Server) Database(name string) (string, error) {
	if err := s.exec(`CREATE SCHEMA IF NOT EXISTS "` + name + `"`); err != nil {
		return "", fmt.Errorf("pgtest: %w", err)
	}
	return s.address("&search_path=" + name), nil
}

// halt ends the server.
func (s *Server) halt() error {
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil { // its fast way: clients are cut off
		return err
	}
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("pgtest: %w: %.400s", err, s.said.Bytes())
	}
	return nil
}

// Stop ends the server and deletes its files.
func (s *Server) Stop() error { return errors.Join(s.halt(), os.RemoveAll(s.dir)) }
