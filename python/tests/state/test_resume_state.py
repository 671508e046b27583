"""State of any library that ranks ahead send to ranks behind, in parts and with digests."""

import threading
import time

import numpy
import pytest

import landbridge
import stand_in_gateway
from conftest import attached_groups, call_for_all
from landbridge._local_regions import LocalRegions
from landbridge._state_transfer import piece_stream, pieces, transfer_round

#: Bytes of a state that two ranks share: 24 pieces and a part of one.
STATE_BYTES = 24 * pieces.PIECE_BYTES + 1000


@pytest.fixture(scope="module")
def three_regions():
    """Three regions of one rank each, of which any two go on without one that is silent for 3 s."""
    regions = LocalRegions(ranks=(1, 1, 1))
    fabric = regions.folder / "fabric.toml"
    text = fabric.read_text("utf-8")
    fabric.write_text('quorum = "majority"\nsilence = "3 s"\n' + text, "utf-8")
    with regions as running:
        yield running


@pytest.fixture
def three_groups(three_regions):
    """Three ranks, each in a region of its own."""
    with attached_groups(three_regions, arena="80 MiB") as groups:
        yield groups


def state_of(seed):
    """Returns a state as NumPy has it."""
    return numpy.random.default_rng(seed).integers(0, 255, STATE_BYTES, numpy.uint8)


class Keeper:
    """A rank with a state of NumPy."""

    def __init__(self, group, step, state):
        self.group, self.step, self.state = group, step, state

    def resume(self):
        self.step = landbridge.resume_state(
            self.group, self.step, lambda: self.state, self.load, timeout=60
        )
        return self.step

    def load(self, content):
        self.state = numpy.frombuffer(content, numpy.uint8).copy()


def keepers_of(groups, steps):
    """Returns a keeper for each rank. Ranks at the last step have one state."""
    return [
        Keeper(group, step, state_of(7 if step == max(steps) else rank))
        for rank, (group, step) in enumerate(zip(groups, steps))
    ]


def sent_pieces(monkeypatch):
    """Returns the pieces that each rank sends from here on, by its number."""
    sent = {}
    move = piece_stream.PieceStream._move_piece

    def note(self, piece):
        if self._content is not None:
            sent.setdefault(self.plan.sender_in_job, []).append(piece)
        move(self, piece)

    monkeypatch.setattr(piece_stream.PieceStream, "_move_piece", note)
    return sent


def test_two_ranks_send_each_a_part(three_groups, monkeypatch):
    sent = sent_pieces(monkeypatch)
    monkeypatch.setattr(piece_stream, "_ANNOUNCED_AHEAD", 1)
    keepers = keepers_of(three_groups, [5, 0, 5])
    assert call_for_all(keepers, Keeper.resume) == [5, 5, 5]
    assert numpy.array_equal(keepers[1].state, state_of(7))
    assert sorted(sent[0] + sent[2]) == list(range(25)), "each piece crosses once"


def test_all_ranks_of_a_region_receive_at_once(groups, monkeypatch):
    """Each piece is sent once, in the room that a small arena has."""
    sent = sent_pieces(monkeypatch)
    keepers = keepers_of(groups, [1, 0, 5])
    assert call_for_all(keepers, Keeper.resume) == [5, 5, 5]
    assert all(numpy.array_equal(keeper.state, state_of(7)) for keeper in keepers)
    assert list(sent) == [2] and sorted(sent[2]) == list(range(25))


def test_ranks_at_one_step_send_nothing(three_groups, monkeypatch):
    sent = sent_pieces(monkeypatch)
    keepers = keepers_of(three_groups, [5, 5, 5])
    assert call_for_all(keepers, Keeper.resume) == [5, 5, 5] and not sent


def test_an_empty_state_is_loaded(three_groups):
    keepers = keepers_of(three_groups, [1, 0, 1])
    for keeper in keepers:
        keeper.state = numpy.zeros(0, numpy.uint8)
    keepers[1].state = None
    assert call_for_all(keepers, Keeper.resume) == [1, 1, 1]
    assert len(keepers[1].state) == 0


def test_a_rank_behind_keeps_its_state_where_save_fails(three_groups):
    keepers = keepers_of(three_groups, [2, 0, 2])
    del keepers[2].state

    def resume_one(keeper):
        with pytest.raises(landbridge.StateNotTransferred) as caught:
            keeper.resume()
        return str(caught.value)

    texts = call_for_all(keepers, resume_one)
    assert "AttributeError" in texts[2] and "rank 2 cannot send or load" in texts[0]
    assert numpy.array_equal(keepers[1].state, state_of(1))


def damage_pieces(monkeypatch, ranks):
    """Lets ranks send other bytes than those of which they told the digests."""
    init = piece_stream.PieceStream.__init__

    def damage(self, plan, content, received, schedule):
        if content is not None and plan.sender_in_job in ranks:
            content = memoryview(bytearray(content))
            for at in range(0, len(content), pieces.PIECE_BYTES):
                content[at] ^= 1
        init(self, plan, content, received, schedule)

    monkeypatch.setattr(piece_stream.PieceStream, "__init__", damage)


def test_a_piece_with_another_digest_comes_from_another_rank(three_groups, monkeypatch):
    damage_pieces(monkeypatch, [0])
    keepers = keepers_of(three_groups, [3, 0, 3])
    assert call_for_all(keepers, Keeper.resume) == [3, 3, 3]
    assert numpy.array_equal(keepers[1].state, state_of(7))


def test_pieces_that_all_ranks_damage_raise_everywhere(three_groups, monkeypatch):
    damage_pieces(monkeypatch, [0, 2])
    keepers = keepers_of(three_groups, [3, 0, 3])

    def resume_one(keeper):
        with pytest.raises(landbridge.StateNotTransferred, match="rank .* does not have the digests"):
            keeper.resume()

    call_for_all(keepers, resume_one)
    assert numpy.array_equal(keepers[1].state, state_of(1))


def stop_sender(monkeypatch, rank, after):
    """Returns an event that opens once a rank has sent some pieces. It sends no more then, and
    others begin to send."""
    reached, move = threading.Event(), piece_stream.PieceStream._move_piece

    def stop(self, piece):
        if self._content is not None and self.plan.sender_in_job != rank:
            assert reached.wait(30)
        elif self._content is not None and self._chunks >= after:
            reached.set()
            raise landbridge.Closed("for this test")
        move(self, piece)

    monkeypatch.setattr(piece_stream.PieceStream, "_move_piece", stop)
    return reached


def test_pieces_of_a_killed_region_come_from_another(three_regions, three_groups, monkeypatch):
    """The region of one sender is killed in the middle. The others go on without it."""
    stopped = stop_sender(monkeypatch, 0, after=4)
    begun = []
    begin = pieces.ReceivedPieces.begin_transfer

    def note(self, nbytes, digests):
        missing = begin(self, nbytes, digests)
        begun.append(len(missing))
        return missing

    monkeypatch.setattr(pieces.ReceivedPieces, "begin_transfer", note)
    keepers = keepers_of(three_groups, [5, 0, 5])

    def kill():
        assert stopped.wait(30)
        three_regions.kill_process("east")

    killer = threading.Thread(target=kill)
    killer.start()

    def resume_one(keeper):
        if keeper is keepers[0]:
            with pytest.raises(landbridge.LandbridgeError):
                landbridge.resume_state(
                    keeper.group, 5, lambda: keeper.state, keeper.load, timeout=3
                )
            return None
        return keeper.resume()

    try:
        assert call_for_all(keepers, resume_one) == [None, 5, 5]
        assert numpy.array_equal(keepers[1].state, state_of(7))
        assert begun[0] == 25 and all(left < 25 for left in begun[1:]), "pieces that came are kept"
    finally:
        killer.join()
        three_regions.start_gateway("east")


def test_a_killed_rank_behind_harms_nobody(three_groups, monkeypatch):
    """It is gone in the middle of the transfer. Another process of it begins anew."""
    keepers = keepers_of(three_groups, [5, 0, 5])
    finish = piece_stream.PieceStream._finish_chunk

    def leave(self):
        if self._received is not None and self._chunks > 6:
            three_groups[1].close()
        finish(self)

    monkeypatch.setattr(piece_stream.PieceStream, "_finish_chunk", leave)
    config = three_groups[1]._location

    def resume_one(keeper):
        if keeper is not keepers[1]:
            return keeper.resume()
        with pytest.raises(landbridge.LandbridgeError):
            keeper.resume()
        monkeypatch.setattr(piece_stream.PieceStream, "_finish_chunk", finish)
        return restart(keeper, config)

    assert call_for_all(keepers, resume_one) == [5, 5, 5]
    assert numpy.array_equal(keepers[1].state, state_of(7))
    keepers[1].group.close()


def restart(keeper, location):
    """Attaches a rank anew, as a new process does, and resumes without a state."""
    region = location.socket.with_suffix(".toml")
    keeper.group = landbridge.connect(config=region, rank=1, arena="80 MiB", timeout=60)
    keeper.step, keeper.state = 0, None
    return keeper.resume()


def test_ranks_without_a_group_of_their_own_share_the_job(three_groups, monkeypatch):
    """As where two regions have no link: then the pieces go by the third one."""

    def refuse(*_, **__):
        raise landbridge.BadRequest("for this test")

    for group in three_groups:
        monkeypatch.setattr(group, "new_group", refuse)
    keepers = keepers_of(three_groups, [5, 0, 5])
    assert call_for_all(keepers, Keeper.resume) == [5, 5, 5]
    assert numpy.array_equal(keepers[1].state, state_of(7))


def test_ranks_that_never_come_end_the_wait(three_groups):
    begun = time.monotonic()
    with pytest.raises(landbridge.RanksTimedOut):
        landbridge.resume_state(three_groups[0], 3, bytes, bytes, timeout=0.5)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("save, load", [(None, bytes), (bytes, 3)])
def test_a_callback_that_is_no_function_is_refused(save, load):
    refused = pytest.raises(landbridge.ConfigError, match="accepted: a function")
    with stand_in_gateway.lone_group() as (group, _), refused:
        landbridge.resume_state(group, 3, save, load)


def test_senders_are_in_other_regions_where_there_are_any():
    ranks = transfer_round.TransferRanks(list(range(0, 16)), [16])
    assert ranks.choose_senders() == [0, 4, 8, 12]
    assert transfer_round.TransferRanks([2, 3], [0, 1]).choose_senders() == [2, 3]
