"""Manifests in `examples/deploy/` can be read by what they are for, as far as that can be asked here, and name
settings, ports and commands that exist."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pccl.cli import parser as command_line
from pccl.environment import VARIABLES, misspelt
from tests.patience import HANG_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
FILES = sorted(path for path in DEPLOY.iterdir() if path.is_file())
NOTICE_S = 25
"""What a peer may take for its last round after SIGTERM (`notice_s`); saving comes on top."""

yaml = pytest.importorskip("yaml", reason="pre-commit, and so the development tools, bring it")


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_setting_and_port_exists(path):
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"\bPCCL_[A-Z_]+", text)) <= set(VARIABLES)
    assert set(re.findall(r"\b48\d{3}\b", text)) <= {"48148", "48149"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_page_names_each_manifest(path):
    assert path.name in (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_of_the_master_are_those_of_the_command_line(path):
    text = path.read_text(encoding="utf-8")
    lines = [line.split("pccl master ")[1] for line in text.splitlines() if re.search(r"pccl master --", line)]
    if path.name == "kubernetes.yaml":
        lines = [" ".join(documents(path.name)[1]["spec"]["template"]["spec"]["containers"][0]["command"][2:])]
    for line in lines:
        assert command_line().parse_args(["master", *line.split()]).command == "master"


def test_kubernetes_restarts_a_peer_and_never_the_group():
    kinds = {each["kind"]: each for each in documents("kubernetes.yaml")}
    assert list(kinds) == ["PersistentVolumeClaim", "Deployment", "Service", "Job"]
    master, job = kinds["Deployment"]["spec"], kinds["Job"]["spec"]
    assert (master["replicas"], master["strategy"]["type"]) == (1, "Recreate")
    assert kinds["Service"]["spec"]["selector"] == master["template"]["metadata"]["labels"]
    assert job["completionMode"] == "Indexed"
    assert "backoffLimit" not in job
    assert job["completions"] == job["parallelism"]
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] > NOTICE_S
    validate = sys.modules.get("kubernetes_validate") or _optional("kubernetes_validate")
    if validate is not None:
        for document in documents("kubernetes.yaml"):
            validate.validate(document, "1.33", strict=True)


def test_kubernetes_sets_no_variables_that_look_like_settings_of_ours():
    """For a Service pccl-master it would set PCCL_MASTER_PORT and six others in each pod."""
    kinds = {each["kind"]: each for each in documents("kubernetes.yaml")}
    assert kinds["Service"]["metadata"]["name"].startswith("pccl")
    assert misspelt(["PCCL_MASTER_PORT"])
    pods = [kinds[kind]["spec"]["template"]["spec"] for kind in ("Deployment", "Job")]
    assert [each.get("enableServiceLinks") for each in pods] == [False, False]


TOLD = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); print('on', flush=True); signal.pause()"


@pytest.mark.parametrize(("peer", "code"), [("raise SystemExit(0)", 0), ("raise SystemExit(3)", 3), (TOLD, 143)])
def test_a_pod_that_is_told_to_go_is_not_done_for_kubernetes(tmp_path, peer, code):
    """A peer that was told exits with 0, and its index would count as complete."""
    (tmp_path / "python").write_text(f"#!{sys.executable}\n{peer}\n")
    (tmp_path / "python").chmod(0o755)
    (*_, job) = documents("kubernetes.yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    settings = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen(container["command"], env=settings, stdout=subprocess.PIPE, text=True) as pod:
        if pod.stdout.readline() == "on\n":
            pod.terminate()
        assert pod.wait(HANG_S) == code


def _optional(name):
    try:
        return __import__(name)
    except ImportError:
        return None


@pytest.mark.parametrize("name", ["skypilot-master.yaml", "skypilot-peer.yaml"])
def test_skypilot_starts_one_machine_for_each_job(name):
    (task,) = documents(name)
    assert task["num_nodes"] == 1
    assert task["resources"]["use_spot"] is (name == "skypilot-peer.yaml")
    for script in (task["setup"], task["run"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("name", ["pccl-master.service", "pccl-peer@.service"])
def test_systemd_can_read_the_units(name, tmp_path):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(DEPLOY / name)
    assert parser.sections() == ["Unit", "Service", "Install"]
    assert parser["Service"]["Restart"] in ("always", "on-failure")
    if shutil.which("systemd-analyze") is not None:
        text = re.sub(r"/opt/pccl/\S+", "/bin/true", (DEPLOY / name).read_text())
        unit = tmp_path / name.replace("@", "@0")
        unit.write_text(text)
        found = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
        assert unit.name not in found.stderr, found.stderr


def test_bash_can_read_the_script_of_slurm():
    subprocess.run(["bash", "-n", DEPLOY / "peers.sbatch"], check=True)
    options = re.findall(r"^#SBATCH (--[a-z-]+)", (DEPLOY / "peers.sbatch").read_text(), re.MULTILINE)
    assert {"--requeue", "--signal", "--nodes"} <= set(options)
